"""A plan as a configuration file of another tool, and what that could not hold."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import PlanError
from autotune.export.contents import PlanFile
from autotune.export.files import check_place, write_text
from autotune.export.formats import comment, format_of
from autotune.export.frameworks.framework import Framework, LeftOut, said_in
from autotune.export.frameworks.training import Training
from autotune.export.header import about

_WRITTEN_BY = "Written by `autotune export"  # begins the first comment of each configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The text of a configuration file, and the settings that it leaves out."""

    text: str
    left_out: tuple[LeftOut, ...]


def configuration(
    framework: Framework, training: Training, file: PlanFile, format_name: str, file_name: str
) -> Configuration:
    """Return a plan as a configuration.

    Args:
        framework: the tool.
        training: the plan with the facts of its run.
        file: the same plan with its results, for the comment.
        format_name: one of the tool's.
        file_name: of the configuration, for the comment on how to use it.
    """
    dialect = framework.dialects[format_name]
    keys, left_out = said_in(training, dialect)
    body = dialect.render(keys, training)
    if not dialect.has_comments:
        return Configuration(text=body, left_out=left_out)
    lines = [
        f"{_WRITTEN_BY} --for {framework.name}` with the keys of {framework.made_for}.",
        *about(file),
        "",
        *dialect.usage(file_name, training),
        *_not_held(left_out),
    ]
    return Configuration(text=f"{comment(lines)}\n{body}", left_out=left_out)


def check_configuration_writable(
    framework: Framework, path: Path, format_name: str | None = None, *, force: bool = False
) -> str:
    """Check that a configuration can be written to `path`, and return the format it would have.

    Raises:
        PlanError: for a format that the tool does not read, a missing or read-only folder, or
            without `force` an existing file that autotune did not write.
    """
    chosen = format_of(path, format_name, tuple(framework.dialects))
    check_place(path)
    if path.exists() and not force and not _is_ours(path):
        raise PlanError(
            f"{path} exists and autotune cannot tell that it wrote it, so it was left alone; "
            "write to another file, or overwrite it with --force"
        )
    return chosen


def write_configuration(written: Configuration, path: Path) -> None:
    """Write a configuration in one atomic step; see `check_configuration_writable` first.

    Raises:
        PlanError: when writing fails, as on a full disk.
    """
    write_text(path, written.text)


def _not_held(left_out: tuple[LeftOut, ...]) -> Iterator[str]:
    if not left_out:
        return
    yield ""
    yield "The plan says more than this file can. Do in your own code:"
    for one in left_out:
        yield f"    {one.words}"


def _is_ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as lines:
            return lines.readline().startswith(f"# {_WRITTEN_BY}")
    except (OSError, UnicodeDecodeError):
        return False
