"""A trial of two ranks that cannot begin yet keeps nobody waiting."""

import dataclasses

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.ray_runner import RayRunner
from autotune.trials.cause import Cause
from autotune.trials.request import RankPlace
from autotune.trials.result import Outcome

TWO = RankPlace(world_size=2)


@pytest.fixture
def slow_pair(cpu, entries_importable, tmp_path, monkeypatch):
    """Two slots, whose trials cannot begin before `gate` is there."""
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    two = dataclasses.replace(cpu, num_devices=2)
    with (
        LocalCluster(two) as cluster,
        RayRunner(cluster, log_dir=tmp_path, entry="faulty_entries:on_rank_one") as runner,
    ):
        cluster._import(("imports_when_told",))
        yield runner


@pytest.mark.timeout(100)  # an import that lasts for ever keeps nobody waiting
def test_a_trial_that_waits_for_imports_can_be_stopped(slow_pair, make_request, tmp_path):
    """By Ctrl-C and by the budget; afterwards its devices are free, and trials run."""
    slow_pair.submit(make_request("none", number=1, place=TWO))
    slow_pair.cancel(1, Cause.USER_STOPPED)
    (stopped,) = slow_pair.wait(300.0)
    assert stopped.result.cause is Cause.USER_STOPPED
    slow_pair.submit(make_request("none", number=2, place=TWO, give_up_after_s=0.5))
    (late,) = slow_pair.wait(300.0)
    assert late.result.cause is Cause.BUDGET_ENDED
    assert not (tmp_path / "gate").exists()
    (tmp_path / "gate").touch()
    slow_pair.submit(make_request("none", number=3, place=TWO))
    (after,) = slow_pair.wait(300.0)
    assert after.result.outcome is Outcome.OK
