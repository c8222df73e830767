"""Reads plan files from disk and writes them to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import PlanError
from autotune.export.contents import PlanFile, plan_file_of
from autotune.export.document import from_document, to_document
from autotune.export.files import check_place, kernels_path, write_text
from autotune.export.formats import format_of, parse, render
from autotune.export.header import header

__all__ = [
    "PlanFile",
    "check_writable",
    "dump_plan",
    "load_plan_file",
    "plan_file_of",
    "write_plan_file",
]


def load_plan_file(path: Path) -> PlanFile:
    """Read a plan file; its suffix says whether it is YAML, JSON or TOML.

    The plan names the file of kernels that lies beside it, where there is one.

    Raises:
        PlanError: when there is no such file, it cannot be read, or it names an unknown knob,
            value, section or schema version.
    """
    format_name = format_of(path)
    try:
        file = from_document(_parsed(path, format_name))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    kernels = kernels_path(path.absolute())
    return _with_kernels(file, kernels) if kernels.is_file() else file


def dump_plan(file: PlanFile, format_name: str = "yaml", file_name: str = "plan.yaml") -> str:
    """Return the text of a plan file; its header tells how to load `file_name`."""
    return render(to_document(file), format_name, header(file, file_name))


def check_writable(path: Path, format_name: str | None = None, *, force: bool = False) -> str:
    """Check that `write_plan_file` can write to `path`, and return the format it would use.

    Raises:
        PlanError: for an unknown format, a missing or read-only folder, or without `force` an
            existing file that is no plan file.
    """
    chosen = format_of(path, format_name)
    check_place(path)
    if path.exists() and not force and not _is_plan_file(path, chosen):
        raise PlanError(
            f"{path} exists and is not a plan file, so it was left alone; write to another file, "
            "or remove this one"
        )
    return chosen


def write_plan_file(
    file: PlanFile, path: Path, format_name: str | None = None, *, force: bool = False
) -> None:
    """Write a plan file in one atomic step, in place of an older plan file.

    Raises:
        PlanError: see `check_writable`; also when writing fails, as on a full disk.
    """
    chosen = check_writable(path, format_name, force=force)
    write_text(path, dump_plan(file, chosen, path.name))


def _with_kernels(file: PlanFile, kernels: Path) -> PlanFile:
    return replace(file, plan=replace(file.plan, kernels=str(kernels)))


def _parsed(path: Path, format_name: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"), format_name)
    except FileNotFoundError as error:
        raise PlanError(
            "there is no such file; `autotune export RUN -o FILE` writes one"
        ) from error
    except OSError as error:
        raise PlanError(f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"it is not {format_name.upper()}: {error}") from error


def _is_plan_file(path: Path, format_name: str) -> bool:
    try:
        document = _parsed(path, format_name)
    except PlanError:
        return False
    return isinstance(document, dict) and isinstance(document.get("plan"), dict)
