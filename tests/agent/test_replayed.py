"""Whole runs replayed from tables, recorded and made by hand: what a search must never do."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.agent.done import done_from_records
from autotune.agent.forecast.memory import cannot_fit
from autotune.agent.history import SEARCH, History
from autotune.clock import FakeClock
from autotune.dispatch.replay import ReplayRunner
from autotune.dispatch.table import read_table
from autotune.trials.result import Purpose
from tests.agent.world import GIB, GPT, GPT_MODEL, GPU, MLP, MLP_MODEL, Table, World

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "tables").glob("*.jsonl"))
SMALL = replace(GPU, device_memory_bytes=40 * GIB)


class Recorded(Table):
    """A run on a recorded table instead of a world."""

    def __init__(self, path):
        self.recorded = read_table(path)
        world = World(GPT_MODEL, hardware=self.recorded.hardware)
        super().__init__(world, self.recorded.facts, budget_s=900.0, settings={})
        drawn = {plan: processes[0] for plan, processes in self.recorded.results.items()}
        self.runner = ReplayRunner(self.recorded.hardware, drawn, clock=self.clock)

    @property
    def space(self):
        return self.recorded.space


def by_hand(facts, model, hardware):
    """A run on a table made by hand."""
    return Table(World(model, hardware=hardware), facts, budget_s=900.0, settings={})


@pytest.fixture(
    params=[
        *(lambda path=path: Recorded(path) for path in RECORDED),
        lambda: by_hand(GPT, GPT_MODEL, SMALL),
        lambda: by_hand(MLP, MLP_MODEL, GPU),
    ],
    ids=[*(path.stem for path in RECORDED), "gpt by hand", "mlp by hand"],
    scope="module",
)
def run(request):
    """A whole run, from its baseline to its conclusion."""
    table = request.param()
    table.search().run()
    return table


def test_a_replayed_run_finds_something_and_confirms_it(run):
    """The fake clock has gone through all of it."""
    assert isinstance(run.clock, FakeClock)
    assert run.record().winner.confirmed
    assert run.record().winner.speedup.ratio > 1.05


def test_no_trial_was_ruled_out_before_by_memory(run):
    """Neither by the peaks of other batches nor by a plan that ran out of memory."""
    records = [r for r in run.store.trials(1) if r.purpose in SEARCH]
    done = done_from_records(records)
    cap = 0.95 * run.world.hardware.device_memory_bytes
    for known, record in enumerate(records):
        seen = History(space=run.space, memory_cap_bytes=cap, done=done[:known])
        assert record.purpose is Purpose.BASELINE or not cannot_fit(record.plan, seen)


def test_no_plan_is_measured_twice_except_to_confirm(run):
    """Search and ablation never repeat a plan, whatever its outcome was."""
    plans = [r.plan for r in run.store.trials(1) if r.purpose in {*SEARCH, Purpose.ABLATE}]
    assert len(plans) == len(set(plans))


def test_memory_rules_something_out_where_it_is_small():
    """The rule above is about a table on which it can be broken."""
    table = by_hand(GPT, GPT_MODEL, SMALL)
    table.search().run()
    cap = 0.95 * SMALL.device_memory_bytes
    seen = History(
        space=table.space, memory_cap_bytes=cap, done=done_from_records(table.store.trials(1))
    )
    best = table.record().winner.plan
    assert any(cannot_fit(plan, seen) for plan in table.space.alternatives(best, "batch_size"))
