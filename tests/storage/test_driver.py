"""Whether the process that drives a run still lives."""

import os
import platform
import subprocess

import psutil

from autotune.storage.driver import lives, pid_of, this_driver


def test_a_driver_lives_until_its_process_ends():
    """A process of the same id that started at another time, or after a boot, is another one."""
    mine = this_driver()
    assert lives(mine)
    assert pid_of(mine) == os.getpid()
    assert lives(f"{mine}0") is False
    assert lives(mine.replace("/", "0/")) is False
    assert lives(mine.replace(platform.node(), "elsewhere")) is None
    with subprocess.Popen(["sleep", "60"]) as child:
        theirs = mine.replace(f":{os.getpid()}:", f":{child.pid}:")
        child.kill()
    assert lives(theirs) is False


def test_drivers_of_earlier_versions_are_known_by_the_time_of_the_day():
    """Their runs were stored with it."""
    mine = psutil.Process()
    assert lives(f"{platform.node()}:{mine.pid}:{mine.create_time()}")
    assert lives(f"{platform.node()}:{mine.pid}:{mine.create_time() - 60.0}") is False
