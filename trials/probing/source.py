"""The source of a workload: the modules that it imports, and a hash of its own files."""

import hashlib
import sys
from pathlib import Path

from autotune.trials.forkable import is_forkable
from autotune.trials.workload import Workload, load_workload, own_modules


def load_noting_imports(path: Path) -> tuple[Workload, tuple[str, ...]]:
    """Load the workload; return it with the installed modules that it imports.

    A process that imports these before a trial is forked saves the trial's time. There are none
    where a process can no longer be forked after importing them.

    Raises:
        WorkloadError: when it cannot be imported or breaks its contract.
    """
    before = set(sys.modules)
    workload = load_workload(path)
    forkable, imports = is_forkable(), _installed(set(sys.modules) - before)
    return workload, imports if forkable else ()


def source_hash(path: Path) -> str:
    """Hash the workload's file and every module it imported from its own folder."""
    digest = hashlib.sha256()
    for file in sorted({path.resolve(), *own_modules(path).values()}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _installed(names: set[str]) -> tuple[str, ...]:
    """Return the installed packages and their direct modules among the names of modules."""
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    near = [name for name in names if name.count(".") <= 1 and "site-packages" in files[name]]
    return tuple(sorted(near))
