"""Finds the user's own line among the frames that lead to what is going on."""

import collections
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from autotune import errors

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
        """Count `what` at the user's innermost line; nothing where none of theirs is involved."""
        for frame, line in traceback.walk_stack(sys._getframe()):  # noqa: SLF001  as `inspect` does
            file = frame.f_code.co_filename
            if is_theirs(file, self._folder):
                self.counts[what, Line(file=file, line=line)] += 1
                return


def is_theirs(file: str, folder: Path) -> bool:
    """Whether a file is the user's own: in the workload's folder, and not installed there."""
    path = Path(file)
    if not path.is_absolute() or "site-packages" in path.parts:
        return False
    path = path.resolve()
    return path.is_relative_to(folder) and not any(map(path.is_relative_to, _OURS))
