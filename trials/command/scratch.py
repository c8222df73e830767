# ruff: noqa: PTH100, PTH108, PTH110, PTH112, PTH114, PTH118, PTH206
# Strings instead of paths: this runs at each file that the processes of a command open.
"""The folder that a trial of a command works in, so that the user's own files stay as they are.

It looks like the folder that the user started the command in: each entry is a link to the user's.
What a process of the command is about to write to is copied first, folder by folder as needed.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The position of the paths that are changed, in the arguments of Python's audit events.
_CHANGED = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.truncate": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.chmod": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}


def mirror(home: Path, scratch: Path) -> None:
    """Fill `scratch` with links to the entries of `home`."""
    scratch.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(home):
        with contextlib.suppress(FileExistsError):
            (scratch / entry.name).symlink_to(entry.path)


def confine(scratch: str, home: str) -> None:
    """Copy what this process is about to write to in `scratch`, and refuse writing to `home`.

    Raises, from then on:
        PermissionError: for a path that leads into `home` by another way than through `scratch`.
    """
    inside, users = os.path.abspath(scratch), os.path.realpath(home)

    preparing = threading.local()  # which itself raises such events

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (event != "open" and event not in _CHANGED) or getattr(preparing, "is_on", False):
            return
        preparing.is_on = True
        try:
            for path in _changed_paths(event, arguments):
                _prepare(path, inside, users)
        finally:
            preparing.is_on = False

    sys.addaudithook(audit)


def _changed_paths(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """Yield the paths that an audit event is about to change."""
    if event == "open" and not _is_writing(*arguments[1:]):
        return
    for position in _CHANGED.get(event, (0,)):
        path = arguments[position]
        if isinstance(path, str | bytes | os.PathLike):
            yield os.fsdecode(path)


def _is_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _prepare(path: str, scratch: str, home: str) -> None:
    """Make a path of the scratch folder writable without changing what it was linked to."""
    path = os.path.abspath(path)
    if path.startswith(scratch + os.sep):
        _own(path, scratch)
    elif _is_below(os.path.realpath(path), home) and not _is_below(home, tempfile.gettempdir()):
        raise PermissionError(
            f"a trial would write to {path}, in your own folder; name the argument of your "
            "command that sets it, with --output-flag, or let the script use a relative path"
        )


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _own(path: str, scratch: str) -> None:
    """Replace each link on the way to `path` by what it leads to: a folder of links, or a copy."""
    current = scratch
    for part in os.path.relpath(path, scratch).split(os.sep):
        current = os.path.join(current, part)
        if not os.path.islink(current):
            continue
        target = os.path.realpath(current)
        os.unlink(current)
        if os.path.isdir(target):
            mirror(Path(target), Path(current))
        elif os.path.exists(target):
            shutil.copy2(target, current)
