"""What the machine does to a trial says nothing about its plan."""

from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.errors import DiskFullError, NothingRanError
from autotune.storage.records import RunState
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Purpose
from tests.agent.world import (
    GPT,
    GPT_MODEL,
    GPU,
    Table,
    World,
    failing,
)


@pytest.mark.parametrize("purpose", [Purpose.BASELINE, Purpose.PRESET, Purpose.CONFIRM])
def test_one_failure_of_the_infrastructure_is_retried(purpose):
    """`infra` says nothing about a plan, so the same plan runs again and the run goes on."""
    failed = []

    def fail_once(request):
        if request.purpose is purpose and not failed:
            failed.append(request)
            return failing(Outcome.INFRA)
        return None

    table = Table(World(GPT_MODEL, fail=fail_once), GPT, budget_s=600)
    assert table.search().run().confirmed
    again = [r for r in table.world.requests if r.plan == failed[0].plan]
    assert len(again) > 1


def test_a_machine_that_always_fails_ends_the_run():
    """Two failures of the infrastructure at the baseline are enough."""
    table = Table(World(GPT_MODEL, fail=lambda request: failing(Outcome.INFRA)), GPT)
    with pytest.raises(NothingRanError, match="failed the baseline 2 times"):
        table.search().run()
    assert len(table.store.trials(1)) == 2


def test_a_full_disk_ends_the_run_and_blames_no_plan():
    """The next trials would end so, too. The same run goes on when there is room again."""
    full = failing(Outcome.INFRA, cause=Cause.DISK_FULL)
    table = Table(
        World(GPT_MODEL, fail=lambda request: full if request.number == 4 else None), GPT
    )
    with pytest.raises(DiskFullError, match="free some space where trials write"):
        table.search().run()
    assert table.record().state is RunState.RUNNING
    again = Table(World(GPT_MODEL), GPT, store=table.store)
    assert again.search().run().confirmed
    failed = next(r for r in table.store.trials(1) if r.outcome is Outcome.INFRA)
    plans = [r.plan for r in table.store.trials(1) if r.purpose in SEARCH]
    assert plans.count(failed.plan) == 2


def test_what_ended_together_with_a_full_disk_is_kept():
    """Trials on three devices, the first of which finds the disk full."""
    crash = failing(Outcome.CRASH)
    full = failing(Outcome.INFRA, cause=Cause.DISK_FULL)
    ends = {2: full, 3: crash, 4: crash}
    three = replace(GPU, num_devices=3)
    table = Table(World(GPT_MODEL, hardware=three, fail=lambda r: ends.get(r.number)), GPT)
    with pytest.raises(DiskFullError, match="free some space"):
        table.search().run()
    outcomes = [trial.outcome for trial in table.store.trials(1)]
    assert outcomes == [Outcome.OK, Outcome.INFRA, Outcome.CRASH, Outcome.CRASH]
