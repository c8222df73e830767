"""Attaches autotune to a Python process of a command, when that process imports torch.

Python imports this module at the start of each process that has its folder on PYTHONPATH, so
children of the command have it, too. A `sitecustomize` that this one hides is run as well.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  no import of pathlib
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _attach(torch: ModuleType) -> None:
    from autotune.trials.command.hooks import attach  # noqa: PLC0415  with torch, not before

    attach()


_run_hidden()
if "AUTOTUNE_ORDER" in os.environ:
    try:
        from wrapt import register_post_import_hook
    except ImportError:
        # Without hooks the command would train on, unseen.
        if importlib.util.find_spec("torch") is not None:
            sys.stderr.write(
                f"autotune: {sys.executable} has torch and not autotune; install it for this "
                "Python, too, or start the command with the Python that has it\n"
            )
            os._exit(1)
    else:
        register_post_import_hook(_attach, "torch")
