"""Whatever ends the driver, nothing of its run lives on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.dispatch.reaper import RUN_VARIABLE, find_processes, living_processes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_driver_that_was_ended(tmp_path, number):
    """After SIGKILL or Ctrl-C, no process or file of the private Ray and its trial is left."""
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, str(HERE / "a_driver.py"), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        line = driver.stdout.readline()
        assert line, errors.read_text()
        token, temp_dir = line.split()
        ours = find_processes(RUN_VARIABLE, token)
        assert len(ours) >= 4
        os.killpg(driver.pid, number)
        driver.wait()
    _wait_until(lambda: not Path(temp_dir).exists())
    assert not ours & living_processes().keys()
    assert not find_processes(RUN_VARIABLE, token)


def _wait_until(condition) -> None:
    until = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
