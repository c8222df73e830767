"""Tokens in the environment of a run's processes, by which they can be found later."""

import ctypes
import os
import secrets
from pathlib import Path

from autotune.dispatch.reaper import TRIAL_VARIABLE

_TOKEN_BYTES = 16
# The value of TRIAL_VARIABLE before a process belongs to a trial; as long as a token.
NO_TRIAL = "0" * 2 * _TOKEN_BYTES


def new_token() -> str:
    """Return a random hexadecimal token."""
    return secrets.token_hex(_TOKEN_BYTES)


def mark_process(token: str) -> None:
    """Set the trial's token in this process's environment, also where `/proc` shows it.

    `/proc/<pid>/environ` shows the memory block that the kernel filled at the last exec, which
    `os.environ` does not change. So the placeholder `NO_TRIAL`, with which the process started, is
    overwritten in that block. Forked children inherit it.
    """
    os.environ[TRIAL_VARIABLE] = token
    placeholder = f"{TRIAL_VARIABLE}={NO_TRIAL}".encode()
    block = Path("/proc/self/environ").read_bytes()
    position = block.find(placeholder)
    if position >= 0:
        entry = f"{TRIAL_VARIABLE}={token}".encode()
        ctypes.memmove(_environment_start() + position, entry, len(entry))


def _environment_start() -> int:
    """Return the address of this process's environment block: field 50 of stat, see proc(5)."""
    fields_from_3 = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields_from_3[50 - 3])
