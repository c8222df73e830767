# ruff: noqa: PTH100, PTH105, PTH108, PTH110, PTH112, PTH114, PTH118, PTH111, PTH206
# Strings instead of paths: this runs at each file that the processes of a command open.
"""The folder that a trial of a command works in, so that the user's own files stay as they are.

It looks like the folder that the user started the command in: each entry is a link to the user's.
What a process of the command is about to write to is copied first, folder by folder as needed.
The folders above it are there as well, for paths that go up.
"""

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SAVED = "autotune.saved"
"""The audit event of a checkpoint that is about to be written, by code of any language."""
# Of a folder that are linked; one with more, such as a data set, is seldom beside a script.
_MOST_ENTRIES = 20_000
# Folders below the user's home in which libraries keep what they can make again.
_CACHES = (".cache", ".config", ".local", ".nv", ".triton")
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
    SAVED: (0,),
}
_OF_CHECKPOINTS = (SAVED, "shutil.rmtree")


def mirror(home: Path, scratch: Path) -> None:
    """Fill `scratch` with links to the entries of `home`."""
    scratch.mkdir(parents=True, exist_ok=True)
    for entry in itertools.islice(os.scandir(home), _MOST_ENTRIES):
        with contextlib.suppress(FileExistsError):
            (scratch / entry.name).symlink_to(entry.path)


def mirror_tree(home: Path, tree: Path) -> Path:
    """Mirror `home` below `tree`, and beside it what its parents hold, for paths with `..`.

    Returns:
        The folder that stands for `home`.
    """
    scratch = tree / home.relative_to(home.anchor)
    mirror(home, scratch)
    for parent in home.parents:
        with contextlib.suppress(OSError):  # one that may not be read
            mirror(parent, tree / parent.relative_to(home.anchor))
    return scratch


def confine(scratch: str, home: str) -> None:
    """Copy what this process is about to write to in `scratch`, and refuse writing to `home`.

    Raises, from then on:
        PermissionError: for a path that leads into `home` by another way than through `scratch`;
            for a checkpoint that would be written, or a folder removed, anywhere else but among
            temporary files and caches.
    """
    inside, users = os.path.abspath(scratch), os.path.realpath(home)

    # Found out now: finding it opens files, under a lock.
    temporary = os.path.realpath(tempfile.gettempdir())
    preparing = threading.local()  # set while a copy is made, which raises events of its own

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (event != "open" and event not in _CHANGED) or getattr(preparing, "is_on", False):
            return
        preparing.is_on = True
        try:
            for path in _changed_paths(event, arguments):
                if not _own(path, inside) and not _is_free(path, users, temporary):
                    _check_elsewhere(path, users, is_strict=event in _OF_CHECKPOINTS)
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


def _check_elsewhere(path: str, home: str, *, is_strict: bool) -> None:
    if is_strict or _is_below(os.path.realpath(path), home):
        raise PermissionError(
            f"a trial would write to {path}, outside of its own folder; name the argument of "
            "your command that sets it, with --output-flag, or let the script use a relative path"
        )


def _is_free(path: str, home: str, temporary: str) -> bool:
    """Whether trials may write to a path as the script does: a temporary file, or a cache."""
    path, users = os.path.realpath(path), os.path.expanduser("~")
    if any(_is_below(path, os.path.join(users, cache)) for cache in _CACHES):
        return True
    is_users = _is_below(home, temporary) and _is_below(path, home)
    return _is_below(path, temporary) and not is_users


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _own(path: str, scratch: str) -> bool:
    """Replace each link on the way to `path` by what it leads to: a folder of links, or a copy.

    Returns:
        Whether the path is in the scratch folder.
    """
    path, current = os.path.abspath(path), scratch
    if not path.startswith(scratch + os.sep):
        return False
    for part in os.path.relpath(path, scratch).split(os.sep):
        current = os.path.join(current, part)
        if not os.path.islink(current):
            continue
        with contextlib.suppress(FileNotFoundError):  # another rank does the same
            _replace_link(current, os.path.realpath(current))
    return True


def _replace_link(link: str, target: str) -> None:
    """Replace a link by a folder of links, or by a copy of a file."""
    if os.path.isdir(target):
        os.unlink(link)
        mirror(Path(target), Path(link))
    elif os.path.exists(target):
        copy = f"{link}.{os.getpid()}"
        shutil.copy2(target, copy)
        os.replace(copy, link)
    else:
        os.unlink(link)
