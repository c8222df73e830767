"""Finds and kills the processes of a trial or a run; as a script, does so when the driver dies.

A process belongs to a trial when its environment holds the trial's token, when it descends from
one that does, or when it is in the trial's session. Process names are never looked at.

`python -I -S reaper.py DRIVER_PID RUN_TOKEN TEMP_DIR` uses the standard library alone, so that it
starts in milliseconds and outlives whatever kills the driver. (It avoids pathlib, whose import
takes longer than all the others.)
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

# Environment variables that hold the token of the run and of the trial a process belongs to.
RUN_VARIABLE = "AUTOTUNE_RUN"
TRIAL_VARIABLE = "AUTOTUNE_TRIAL"


class ProcessStat(NamedTuple):
    """Fields of `/proc/<pid>/stat`; see proc(5) for the letters of the state."""

    pid: int
    parent: int
    session: int
    state: str


def living_processes() -> dict[int, ProcessStat]:
    """Return all processes of this machine by id, without zombies."""
    found = (_read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {process.pid: process for process in found if process is not None}


def _read_stat(pid: int) -> ProcessStat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    # The name, in parentheses, may itself hold blanks and parentheses.
    state, parent, _, session = text.rpartition(b")")[2].split()[:4]
    if state in (b"Z", b"X"):
        return None
    return ProcessStat(pid, int(parent), int(session), state.decode())


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped the process."""
    process = _read_stat(pid)
    return process is not None and process.state == "T"


def has_variable(pid: int, variable: str, value: str) -> bool:
    """Return whether `/proc/<pid>/environ` holds `variable=value`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"{variable}={value}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def find_processes(variable: str, value: str, session: int | None = None) -> set[int]:
    """Return the ids of processes with `variable=value` or in `session`, and their descendants.

    This process itself is left out.
    """
    processes = living_processes()
    # A leader that has just been forked has not opened its session yet.
    ours = {p.pid for p in processes.values() if session in (p.session, p.pid)}
    ours |= {pid for pid in processes if has_variable(pid, variable, value)}
    return _with_descendants(ours, processes) - {os.getpid()}


def _with_descendants(roots: Iterable[int], processes: dict[int, ProcessStat]) -> set[int]:
    family = set(roots)
    while True:
        children = {p.pid for p in processes.values() if p.parent in family}
        if children <= family:
            return family
        family |= children


def kill_all(variable: str, value: str, session: int | None = None, wait_s: float = 10.0) -> bool:
    """Kill what `find_processes` finds until nothing is left; return False after `wait_s`."""
    until = time.monotonic() + wait_s
    # A dying process has lost its environment already, but holds its device memory still.
    dying: set[int] = set()
    while (pids := find_processes(variable, value, session)) or dying:
        send_signal(signal.SIGKILL, pids)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
        dying = (dying | pids) & living_processes().keys()
    return True


def send_signal(number: int, pids: Iterable[int]) -> None:
    """Send signal `number` to each of the processes that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def clean_up_after(driver_pid: int, run_token: str, temp_dir: str) -> None:
    """Wait until the driver ends; then end its run.

    That is to kill all processes that carry the run's token, and to remove its temporary folder.
    A scheduler that ends a job sends SIGTERM to all its processes; this one waits for the driver.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):  # the driver has already ended
        select.select([os.pidfd_open(driver_pid)], [], [])
    kill_all(RUN_VARIABLE, run_token)
    shutil.rmtree(temp_dir, ignore_errors=True)


if __name__ == "__main__":
    clean_up_after(int(sys.argv[1]), sys.argv[2], sys.argv[3])
