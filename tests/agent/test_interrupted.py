"""A run that was stopped or killed goes on where it was."""

import threading

import pytest

from autotune.storage.records import RunState, TrialRecord
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Purpose
from tests.agent.conftest import played
from tests.agent.world import (
    GPT,
    GPT_MODEL,
    Table,
    World,
    as_after,
)


def key(record: TrialRecord):
    return record.number, record.plan, record.purpose, record.reason, record.outcome


@pytest.fixture(scope="module")
def whole_run():
    """A finished run, and the budget used when each trial ended."""
    table, used = Table(World(GPT_MODEL), GPT, budget_s=300, settings={}), []
    table.observer.on_finish = lambda *_: used.append(table.record().used_s)
    return played(table), used


@pytest.mark.parametrize("ended", [1, 3, 8, 10, 12, 13, 15])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole_run, ended):
    """From any prefix of the trials the same decisions follow, in search and confirmation."""
    whole, used = whole_run
    expected = [key(record) for record in whole.store.trials(1)]
    assert len(expected) > ended

    world = World(GPT_MODEL, requests=whole.world.requests[:ended])
    store = as_after(ended, whole.store, used[ended - 1])
    resumed = Table(world, GPT, 300, settings={}, store=store)
    assert resumed.search().run() == whole.record().winner
    assert [key(record) for record in resumed.store.trials(1)] == expected


def test_a_run_in_sqlite_goes_on_where_it_stopped(tmp_path):
    """What the real store gives back is enough to go on, the in-flight trial is run again."""
    store = open_store(str(tmp_path / "autotune.db"))
    world = World(GPT_MODEL)
    stopped = threading.Event()
    first = Table(world, GPT, store=store, is_stopped=stopped.is_set)
    first.observer.on_submit = lambda number, proposal: number == 5 and stopped.set()
    first.search().run()
    assert first.record().state is RunState.INTERRUPTED
    before = [r for r in store.trials(first.run.id) if r.outcome is not Outcome.CANCELLED]

    store.resume_run(first.run.id, budget_s=900, driver="host:2:0")
    winner = Table(world, GPT, store=store).search().run()
    assert winner.confirmed
    records = store.trials(first.run.id)
    assert [key(r) for r in records[: len(before)]] == [key(r) for r in before]
    assert records[len(before) + 1].plan == records[len(before)].plan
    store.close()


def test_the_stop_flag_ends_the_run_with_the_best_so_far():
    """One Ctrl-C cancels what runs, confirms nothing, and keeps the best as not confirmed."""
    stopped = threading.Event()
    table = Table(World(GPT_MODEL), GPT, is_stopped=stopped.is_set)
    table.observer.on_submit = lambda number, proposal: number == 4 and stopped.set()
    winner = table.search().run()
    assert not winner.confirmed
    assert winner.speedup is None
    assert winner.own.throughput > 300
    assert table.store.trials(1)[-1].outcome is Outcome.CANCELLED
    assert table.record().state is RunState.INTERRUPTED
    assert not any(r.purpose is Purpose.CONFIRM for r in table.store.trials(1))


def test_the_stop_flag_before_any_measurement_concludes_nothing():
    """Stopped during the baseline there is no winner, and no error either."""
    stopped = threading.Event()
    table = Table(World(GPT_MODEL), GPT, is_stopped=stopped.is_set)
    table.observer.on_submit = lambda number, proposal: stopped.set()
    assert table.search().run() is None
    assert table.record().state is RunState.INTERRUPTED
