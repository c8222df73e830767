"""How a store names the process that drives a run, and how others see whether it still lives."""

import os
import platform
from pathlib import Path

import psutil

from autotune.storage.records import RunState

_SAME_START_S = 1.0
"""Largest difference of two start times of one process, which are read with rounding."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Holds a random number that is another one after each boot."""


def this_driver() -> str:
    """Return `host:pid:boot-id/start` of this process; the start is in ticks since the boot.

    Unlike a time of the day, that stays the same when somebody sets the clock.
    """
    return f"{platform.node()}:{os.getpid()}:{_start(os.getpid())}"


def pid_of(driver: str) -> int:
    """Return the process id of a driver."""
    return int(driver.rsplit(":", 2)[1])


def on_this_machine(driver: str) -> bool:
    """Return whether the driver's process is, or was, on this machine."""
    return driver.rsplit(":", 2)[0] == platform.node()


def lives(driver: str) -> bool | None:
    """Return whether the driver's process still lives, None where it is on another machine.

    It is gone, too, where another process has its id by now, or where it is a zombie.
    """
    host, pid, started = driver.rsplit(":", 2)
    if host != platform.node():
        return None
    try:
        process = psutil.Process(int(pid))
        return _is_same(process, started) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def _is_same(process: psutil.Process, started: str) -> bool:
    if "/" in started:
        return _start(process.pid) == started
    # An earlier version wrote the time of the day.
    return abs(process.create_time() - float(started)) < _SAME_START_S


def _start(pid: int) -> str:
    """Return the boot and the ticks since then at which a process started: field 22 of stat."""
    fields_from_3 = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{_BOOT_ID.read_text().strip()}/{fields_from_3[22 - 3]}"


def state_now(stored: RunState, driver: str) -> RunState:
    """Return the state of a run as it is seen now: `killed` where its driver is gone."""
    is_gone = stored is RunState.RUNNING and lives(driver) is False
    return RunState.KILLED if is_gone else stored
