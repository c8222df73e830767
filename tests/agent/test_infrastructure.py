"""What the machine does to a trial says nothing about its plan."""

from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.errors import ClusterError, DiskFullError, NothingRanError, StoreError
from autotune.storage.mirror import MirroredLog
from autotune.storage.records import RunState
from autotune.storage.sql import open_store
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Purpose
from tests.agent.world import (
    GPT,
    GPT_MODEL,
    GPU,
    Playback,
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
    assert table.record().state is RunState.INTERRUPTED
    assert not table.record().winner.confirmed
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


def test_a_store_that_is_gone_ends_the_run_with_the_best_so_far(tmp_path):
    """The trial that the store refused and all before it are there, and the best of them."""
    file = tmp_path / "autotune.db"
    table = Table(World(GPT_MODEL), GPT, store=open_store(str(file)))
    search, log = table.search(), MirroredLog(table.store, table.run)
    search._store = log
    table.observer.on_finish = lambda number, *_: number == 3 and file.unlink()
    with pytest.raises(StoreError, match="was removed or moved"):
        search.run()
    assert [trial.outcome for trial in log.trials(1)] == [*[Outcome.OK] * 3, None]
    assert log.run.state is RunState.INTERRUPTED
    assert not log.run.winner.confirmed
    assert "was removed or moved" in log.run.winner.remarks[0]
    table.store.close()


class Hanging(Playback):
    """A machine whose trials do not end once `hangs` is set."""

    hangs = False

    def wait(self, timeout_s):
        if not self.hangs:
            return super().wait(timeout_s)
        self._clock.sleep(timeout_s)
        return []


@pytest.fixture
def hanging():
    """A run on a machine that hangs from its fourth trial on."""
    table = Table(World(GPT_MODEL), GPT)
    table.runner = Hanging(table.world, table.clock)
    table.observer.on_submit = lambda number, proposal: setattr(table.runner, "hangs", number == 4)
    return table


def test_trials_that_never_end_are_given_back_when_the_budget_is_over(hanging):
    """The run concludes from the others, in time."""
    winner = hanging.search().run()
    assert hanging.clock.now() < hanging.budget_s + 1.0
    *others, last = hanging.store.trials(1)
    assert [trial.outcome for trial in others] == [Outcome.OK] * 3
    assert (last.outcome, last.result.cause) == (Outcome.CANCELLED, Cause.BUDGET_ENDED)
    assert winner is not None


def test_trials_that_never_end_keep_nobody_waiting_who_stopped_the_run(hanging):
    """After some seconds the best so far is concluded."""
    hanging.is_stopped = lambda: hanging.runner.hangs
    assert not hanging.search().run().confirmed
    assert hanging.record().state is RunState.INTERRUPTED
    assert hanging.clock.now() < hanging.budget_s / 2


class Shrunk(Playback):
    """A machine that has lost its devices once the clock is between two moments."""

    lost_s = (0.0, 0.0)

    @property
    def capacity(self):
        first_s, last_s = self.lost_s
        return 0 if first_s <= self._clock.now() < last_s else super().capacity


def with_lost_devices(for_s):
    """Return a run whose devices are lost from its third trial on, for so many seconds."""
    table = Table(World(GPT_MODEL), GPT)
    table.runner = Shrunk(table.world, table.clock)

    def lose(number, *_):
        if number == 3:
            table.runner.lost_s = (table.clock.now(), table.clock.now() + for_s)

    table.observer.on_finish = lose
    return table


def test_devices_that_come_back_are_waited_for():
    """Ray starts another slot in some seconds."""
    assert with_lost_devices(for_s=10.0).search().run().confirmed


def test_a_run_whose_devices_do_not_come_back_keeps_the_best_so_far():
    """It says what to do, and goes on when the same command is typed again."""
    table = with_lost_devices(for_s=1e9)
    with pytest.raises(ClusterError, match="type the same command to go on"):
        table.search().run()
    assert table.record().state is RunState.INTERRUPTED
    assert not table.record().winner.confirmed
