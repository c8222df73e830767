"""Processes that were stopped, as a hang looks from outside, keep a run waiting only so long."""

import os
import signal
import time
from pathlib import Path

import pytest

from autotune.dispatch import ray_runner
from autotune.dispatch.reaper import RUN_VARIABLE, find_processes, is_stopped
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome

pytestmark = pytest.mark.timeout(120)  # a hang of the driver's own fails the test


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def stop_slot_actor(runner):
    ours = find_processes(RUN_VARIABLE, runner._cluster.resources.token)
    (actor,) = [pid for pid in ours if command_line(pid).startswith("ray::SlotActor")]
    stop(actor)


def stop_fork_server(runner):
    stop(runner._cluster._server._process.pid)


def stop(pid):
    """Stop a process, and return once it has stopped, which takes it a moment."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 10.0
    while not is_stopped(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_for_capacity(runner):
    until = time.monotonic() + 60.0
    while not runner.capacity:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_trials_start_after_what_starts_them_was_stopped(run_one, runner):
    """Stopped between two trials, the fork server is replaced before the next."""
    run_one("none")
    stop_fork_server(runner)
    assert run_one("none").outcome is Outcome.OK


def test_a_fork_server_that_reports_no_end_is_replaced(run_one, runner, make_request, monkeypatch):
    """Its trial ends as it was to end, and the next one runs."""
    monkeypatch.setattr(ray_runner, "CLEAN_UP_TIMEOUT_S", 1.0)
    runner.submit(make_request("python_loop", give_up_after_s=2.0))
    runner.wait(1.0)
    stop_fork_server(runner)
    (finished,) = runner.wait(60.0)
    assert finished.result.cause is Cause.BUDGET_ENDED
    wait_for_capacity(runner)
    assert run_one("none").outcome is Outcome.OK


def test_a_slot_that_does_not_answer_is_replaced(run_one, runner, make_request, monkeypatch):
    """The plan of a trial that never began is not to blame for it."""
    run_one("none")
    monkeypatch.setattr(ray_runner, "CLEAN_UP_TIMEOUT_S", 1.0)
    stop_slot_actor(runner)
    late = make_request("none", give_up_after_s=0.5, give_up_cause=Cause.TOO_SLOW)
    runner.submit(late)
    (finished,) = runner.wait(60.0)
    assert finished.result.outcome is Outcome.INFRA
    assert "did not answer" in finished.result.error
    wait_for_capacity(runner)
    assert run_one("none").outcome is Outcome.OK
