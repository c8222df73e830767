"""How a store names the process that drives a run, and how others see whether it still lives."""

import os
import platform

import psutil

from autotune.storage.records import RunState

_SAME_START_S = 1.0
"""Largest difference of two start times of one process, which are read with rounding."""


def this_driver() -> str:
    """Return `host:pid:start-time` of this process."""
    return f"{platform.node()}:{os.getpid()}:{psutil.Process().create_time()}"


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
        is_same = abs(process.create_time() - float(started)) < _SAME_START_S
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def state_now(stored: RunState, driver: str) -> RunState:
    """Return the state of a run as it is seen now: `killed` where its driver is gone."""
    is_gone = stored is RunState.RUNNING and lives(driver) is False
    return RunState.KILLED if is_gone else stored
