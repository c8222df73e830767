"""Finds the line of the user's code that leads to what is running."""

import collections
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from autotune import errors
from autotune.trials.diagnosis import Finding, FindingKind

_INSTALLED = "site-packages"
# The package's folders may be links; a workload may lie in the folder that holds them all.
_OURS = (Path(__file__).resolve().parents[1], Path(errors.__file__).resolve().parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the user's code; `file` is absolute, `line` counts from 1."""

    file: str
    line: int


class EventCounter:
    """Counts events by the line of the user's code that caused them.

    Args:
        folder: of the workload; lines outside of it, and of installed packages, are not the
            user's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.counts: collections.Counter[tuple[str, Line]] = collections.Counter()

    def note(self, what: str) -> None:
        """Count an event at the user's innermost line, if there is one.

        Where that line calls a library other than torch, the library's line is added to `what`.
        """
        inside = ""
        for frame, line in traceback.walk_stack(sys._getframe()):  # noqa: SLF001  as `inspect` does
            file = frame.f_code.co_filename
            if is_users_file(file, self._folder):
                self.counts[what + inside, Line(file=file, line=line)] += 1
                return
            inside = inside or _in_library(file, line)


def is_users_file(file: str, folder: Path) -> bool:
    """Whether a file is the user's own: in the workload's folder, and not installed there."""
    path = Path(file)
    if not path.is_absolute() or _INSTALLED in path.parts:
        return False
    path = path.resolve()
    return path.is_relative_to(folder) and not _is_ours(path)


def _in_library(file: str, line: int) -> str:
    """Return the line of an installed package as text, empty for torch's and autotune's."""
    path = Path(file)
    if _INSTALLED not in path.parts or _is_ours(path.resolve()):
        return ""
    package, *rest = path.parts[path.parts.index(_INSTALLED) + 1 :]
    return "" if package == "torch" else f" in {'/'.join([package, *rest])}:{line}"


def _is_ours(path: Path) -> bool:
    return any(map(path.is_relative_to, _OURS))


def at_line(line: Line, kind: FindingKind, what: str, advice: str) -> Finding:
    """Return the finding at a line of the user's code."""
    return Finding(kind=kind, what=what, advice=advice, file=line.file, line=line.line)


def times(count: int) -> str:
    """Return a count per step as text."""
    return "once in a step" if count == 1 else f"{count} times in a step"


def plain_name(name: str) -> str:
    """Return the parameter's name in the user's model, without checkpointing's wrapper."""
    return name.replace("_checkpoint_wrapped_module.", "")
