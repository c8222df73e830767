"""Finds the user's own line among the frames that lead to what is going on."""

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


class Sightings:
    """What was seen in the user's code: how often, and where.

    Args:
        folder: of the workload; lines outside of it, and of installed packages, are not theirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.counts: collections.Counter[tuple[str, Line]] = collections.Counter()

    def note(self, what: str) -> None:
        """Count `what` at the user's innermost line; nothing where none of theirs is involved.

        Where it goes on in a library they call, other than torch, `what` says where.
        """
        inside = ""
        for frame, line in traceback.walk_stack(sys._getframe()):  # noqa: SLF001  as `inspect` does
            file = frame.f_code.co_filename
            if is_theirs(file, self._folder):
                self.counts[what + inside, Line(file=file, line=line)] += 1
                return
            inside = inside or _in_library(file, line)


def is_theirs(file: str, folder: Path) -> bool:
    """Whether a file is the user's own: in the workload's folder, and not installed there."""
    path = Path(file)
    if not path.is_absolute() or _INSTALLED in path.parts:
        return False
    path = path.resolve()
    return path.is_relative_to(folder) and not _is_ours(path)


def _in_library(file: str, line: int) -> str:
    """Return in words which line of an installed package it is, nothing for torch's and ours."""
    path = Path(file)
    if _INSTALLED not in path.parts or _is_ours(path.resolve()):
        return ""
    package, *rest = path.parts[path.parts.index(_INSTALLED) + 1 :]
    return "" if package == "torch" else f" in {'/'.join([package, *rest])}:{line}"


def _is_ours(path: Path) -> bool:
    return any(map(path.is_relative_to, _OURS))


def at_line(line: Line, kind: FindingKind, what: str, advice: str) -> Finding:
    """Return the finding of something at a line."""
    return Finding(kind=kind, what=what, advice=advice, file=line.file, line=line.line)


def times(count: int) -> str:
    """Return in words how often something happens in a step."""
    return "once in a step" if count == 1 else f"{count} times in a step"


def plain_name(name: str) -> str:
    """Return the parameter's name in the user's model, which checkpointing wraps."""
    return name.replace("_checkpoint_wrapped_module.", "")
