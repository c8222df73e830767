"""Finds and kills the processes of a trial or of a whole run, and watches over the driver.

A process is ours when its environment holds our mark, when it is a descendant of one that does,
or when it stays in the session of a trial. Names are never looked at. Runs as a script with the
standard library alone, so that it starts in milliseconds and outlives whatever kills the driver:
`python -I -S reaper.py DRIVER_PID RUN_TOKEN TEMP_DIR`. (No pathlib: importing it takes longer
than all the rest.)
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

RUN_VARIABLE = "AUTOTUNE_RUN"
TRIAL_VARIABLE = "AUTOTUNE_TRIAL"


class Process(NamedTuple):
    """What `/proc/<pid>/stat` says of a living process."""

    pid: int
    parent: int
    session: int


def living() -> dict[int, Process]:
    """Return every process of the machine that is not a zombie."""
    found = (_read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {process.pid: process for process in found if process is not None}


def _read_stat(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    # The name, in parentheses, may itself hold blanks and parentheses.
    state, parent, _, session = text.rpartition(b")")[2].split()[:4]
    return None if state in (b"Z", b"X") else Process(pid, int(parent), int(session))


def has_mark(pid: int, variable: str, value: str) -> bool:
    """Whether the environment of `pid`, as the kernel shows it, holds `variable=value`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"{variable}={value}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def find(variable: str, value: str, session: int | None = None) -> set[int]:
    """Return the marked processes, all in `session`, its leader, and the descendants of all."""
    processes = living()
    # A leader that has just been forked has not opened its session yet.
    ours = {p.pid for p in processes.values() if session in (p.session, p.pid)}
    ours |= {pid for pid in processes if has_mark(pid, variable, value)}
    return _with_descendants(ours, processes) - {os.getpid()}


def _with_descendants(roots: Iterable[int], processes: dict[int, Process]) -> set[int]:
    family = set(roots)
    while True:
        children = {p.pid for p in processes.values() if p.parent in family}
        if children <= family:
            return family
        family |= children


def kill_all(variable: str, value: str, session: int | None = None, wait_s: float = 10.0) -> bool:
    """Send SIGKILL to what `find` finds until nothing is left; False after `wait_s` seconds."""
    until = time.monotonic() + wait_s
    # A dying process has lost its environment already, but holds its device memory still.
    dying: set[int] = set()
    while (pids := find(variable, value, session)) or dying:
        send(signal.SIGKILL, pids)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
        dying = (dying | pids) & living().keys()
    return True


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        _send(number, pid)


def _send(number: int, pid: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def watch(driver_pid: int, run_token: str, temp_dir: str) -> None:
    """Wait until the driver is gone or sends SIGTERM, then remove all that carries its mark."""
    asked, asking = os.pipe()
    os.set_blocking(asking, False)
    signal.set_wakeup_fd(asking, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    waited_for = [asked]
    try:
        waited_for.append(os.pidfd_open(driver_pid))
        select.select(waited_for, [], [])
    except ProcessLookupError:
        pass  # the driver died before we looked: there is nothing to wait for
    kill_all(RUN_VARIABLE, run_token)
    shutil.rmtree(temp_dir, ignore_errors=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], sys.argv[3])
