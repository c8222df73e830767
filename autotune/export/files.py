"""Puts the text of plan files and configurations on the disk."""

import os
from pathlib import Path

from autotune.errors import PlanError


def kernels_path(plan_file: Path) -> Path:
    """Return where the compiled kernels of a plan file lie, if they were exported with it."""
    return plan_file.with_suffix(".kernels")


def check_place(path: Path) -> None:
    """Check that a file can be written at `path`.

    Raises:
        PlanError: for a missing or read-only folder, or a path that is a folder itself.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise PlanError(f"cannot write {path}: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK):
        raise PlanError(f"cannot write {path}: the folder {folder} is read-only; choose another")
    if path.is_dir():
        raise PlanError(f"cannot write {path}: it is a folder; name a file in it")


def write_text(path: Path, text: str) -> None:
    """Write a file in one atomic step.

    Raises:
        PlanError: when writing fails, as on a full disk.
    """
    target = path.resolve()
    temporary = target.with_name(f".plan-{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PlanError(
            f"cannot write {path}: {error.strerror}; the plan is in the store, "
            "`autotune export RUN -o FILE` writes it elsewhere"
        ) from error
