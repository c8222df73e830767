"""The actor of a device, without a cluster around it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.dispatch import slot_actor
from autotune.dispatch.job import Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.slot_actor import RankExit, SlotActor
from autotune.dispatch.workload_folder import pack_folder
from autotune.trials.result import Outcome, Phase, TrialResult


@pytest.fixture
def slot(entries_importable):
    """A slot that is ready for jobs."""
    actor = SlotActor("cpu")
    actor.open(new_token(), frozenset(os.sched_getaffinity(0)), None)
    yield actor
    actor._server.close()
    actor._server.resources.close()


@pytest.fixture
def job(make_request, tmp_path):
    """Return a function that makes the job of a trial."""

    def make(fault: str, entry: str = "run") -> Job:
        request = make_request(fault)
        log = str(tmp_path / "log")
        entry = f"faulty_entries:{entry}"
        return Job(entry=entry, argument=request, log=log, token=new_token())

    return make


def test_a_slot_tells_what_remained(slot, job):
    """After what the trial yields comes how its process ended, and the end of its output."""
    phase, end = slot.run(job("kill"))
    assert phase is Phase.BUILD
    assert end == RankExit(log_tail="trial 1 speaks\n", exit_code=-9, ended_at=end.ended_at)
    assert end.ended_at is not None


def test_a_slot_looks_after_its_own_server(slot, job):
    """One that was killed costs the running job, not the next."""
    items = slot.run(job("python_loop"))
    assert next(items) is Phase.BUILD
    slot._server._process.kill()
    failure, end = items
    assert "the process that starts trials is gone" in failure.error
    assert end.exit_code is None
    _, result, end = [item for item in slot.run(job("none")) if item is not Phase.MEASURE]
    assert result.outcome is Outcome.OK
    assert end.exit_code == 0


def test_a_job_that_was_ended_before_it_began_does_not_run_on(slot, job, monkeypatch):
    """The word to end it may overtake the job itself, which begins all the same."""
    monkeypatch.setattr(slot_actor, "CHECK_EVERY_S", 60.0)  # it begins sooner on any machine
    task = job("python_loop")
    slot.end(task.token)
    *_, end = slot.run(task)
    assert end.exit_code == -9


def test_the_workload_travels_to_a_node_that_lacks_it(slot, job, tmp_path):
    """A trial finds the files of the driver's folder, its own modules among them."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "model.py").write_text("import lib")
    (theirs / "lib.py").write_text("x = 1")
    slot.unpack("/of/the/driver", pack_folder(theirs))
    task = job("none", "own_files")
    where = {"workload_path": "/of/the/driver/model.py", "working_dir": "/of/the/driver"}
    task = replace(task, argument=replace(task.argument, **where), log="/of/the/driver/log")
    result, end = slot.run(task)
    assert isinstance(result, TrialResult)
    seen = json.loads(str(result.error))
    assert (seen["model"], seen["lib"]) == ("import lib", "x = 1")
    assert Path(seen["working_dir"]).is_dir()
    assert end.log == b""
    assert end.exit_code == 0
