"""The source of a workload: the modules that it imports, and a hash of its own files."""

import hashlib
import os
import sys
from pathlib import Path

from autotune.trials.forkable import is_forkable
from autotune.trials.workload import own_modules


class Imports:
    """Notes the installed modules that a workload imports, from its creation on.

    A process that imports these before a trial is forked saves the trial's time. Libraries import
    many of their modules only when a model is built, so the notes are taken twice.
    """

    def __init__(self) -> None:
        # Lets torch ask for devices without touching one, as files do that choose their device
        # when they are imported: a touched CUDA device makes every fork unfit for CUDA.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self._before = set(sys.modules)
        self._noted: tuple[str, ...] = ()

    def note(self) -> tuple[str, ...]:
        """Return what was imported while this process can be forked as if it had not been."""
        if is_forkable():
            self._noted = installed(set(sys.modules) - self._before)
        return self._noted


def source_hash(path: Path) -> str:
    """Hash the workload's file and every module it imported from its own folder."""
    digest = hashlib.sha256()
    for file in sorted({path.resolve(), *own_modules(path).values()}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def installed(names: set[str]) -> tuple[str, ...]:
    """Return the installed modules among the names, packages before what is in them."""
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    return tuple(sorted(name for name in names if "site-packages" in files[name]))
