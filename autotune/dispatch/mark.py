"""Marks what is ours, processes and files, so that it can be found however it ends up."""

import ctypes
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Self

from autotune.dispatch.reaper import RUN_VARIABLE, TRIAL_VARIABLE, kill_all

_TOKEN_BYTES = 16
_BLANK = "0" * 2 * _TOKEN_BYTES


def new_token() -> str:
    """Return a fresh mark for the environment of our processes."""
    return secrets.token_hex(_TOKEN_BYTES)


class Scope:
    """What belongs to one run on this machine: processes with its token, files in its folder.

    Use it as a context manager: at its end both are gone.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token or new_token()
        self.folder = Path(tempfile.mkdtemp(prefix="at-", dir=_short_temp_dir()))

    @property
    def marks(self) -> dict[str, str]:
        """The variables for a process of the run, with room for a trial's own mark."""
        return {RUN_VARIABLE: self.token, TRIAL_VARIABLE: _BLANK}

    def close(self) -> None:
        """Kill the processes and remove the files. Safe to call twice."""
        kill_all(RUN_VARIABLE, self.token)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _short_temp_dir() -> str:
    """Return a folder with room for a socket's path, 107 characters: Ray's adds about 70."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= 30 else "/tmp"  # noqa: S108  mkdtemp makes a private folder in it


def mark_process(token: str) -> None:
    """Put the trial's mark where `/proc/<pid>/environ` shows it, for this process and its forks.

    The kernel shows the block of the last exec, which `os.environ` does not change: the blank
    mark of the same length that the process started with is overwritten in place.
    """
    os.environ[TRIAL_VARIABLE] = token
    blank = f"{TRIAL_VARIABLE}={_BLANK}".encode()
    block = Path("/proc/self/environ").read_bytes()
    position = block.find(blank)
    if position >= 0:
        mark = f"{TRIAL_VARIABLE}={token}".encode()
        ctypes.memmove(_environment_start() + position, mark, len(mark))


def _environment_start() -> int:
    # proc(5): field 50 of stat is env_start; the fields after the name start with the third.
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[50 - 3])
