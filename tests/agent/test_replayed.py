"""Whole runs replayed from tables, recorded and made by hand: what a search must never do."""

from pathlib import Path

import pytest

from autotune.agent.done import done_from_records
from autotune.agent.forecast.memory import cannot_fit
from autotune.agent.history import SEARCH, History
from autotune.dispatch.replay import ReplayRunner
from autotune.dispatch.table import read_table
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Purpose
from tests.agent.conftest import SMALL, played
from tests.agent.world import GPT, GPT_MODEL, GPU, MLP, MLP_MODEL, Table, World

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "tables").glob("*.jsonl"))
# Of the best plan's throughput. A search leaves waiting for data alone that costs less than 2 %,
# and ends where another 1 % is unlikely.
NEAR = 0.97
# The knobs that the models by hand speak of, but for workers, which are fixed at plenty.
MATTER = (
    "precision",
    "compile_mode",
    "compile_scope",
    "optimizer_impl",
    "activation_checkpointing",
    "batch_size",
)


class Recorded(Table):
    """A run on a recorded table: each plan gives what its middle process gave."""

    def __init__(self, path):
        self.recorded = read_table(path)
        world = World(GPT_MODEL, hardware=self.recorded.hardware)
        super().__init__(world, self.recorded.facts, budget_s=900.0, settings={})
        self.results = {plan: middle(ran) for plan, ran in self.recorded.results.items()}
        self.runner = ReplayRunner(self.recorded.hardware, self.results, clock=self.clock)

    @property
    def space(self):
        return self.recorded.space

    def speeds(self):
        """Return the throughput of each plan of the table that leaves memory headroom."""
        cap = 0.95 * self.world.hardware.device_memory_bytes
        measured = {plan: result.measurement for plan, result in self.results.items()}
        fits = {plan: m for plan, m in measured.items() if m and (m.memory_bytes or 0) <= cap}
        return {plan: m.throughput for plan, m in fits.items()}


class ByHand(Table):
    """A run on a table made by hand."""

    def __init__(self, facts, model, hardware):
        super().__init__(World(model, hardware=hardware), facts, budget_s=900.0, settings={})

    def speeds(self):
        """Return the throughput without noise of each plan that leaves memory headroom."""
        model, cap = self.world.model, 0.95 * self.world.hardware.device_memory_bytes
        narrowing = Narrowing(knobs=MATTER, fix=(("workers", "8"),))
        space = build_space(self.facts, self.world.hardware, narrowing)
        plans = [*space.enumerate(), self.record().winner.plan]
        return {plan: model.throughput(plan)[0] for plan in plans if model.memory(plan) <= cap}


def middle(processes):
    """Return the result of median throughput, so that no plan owes its speed to luck."""
    in_order = sorted(processes, key=lambda r: r.measurement.throughput if r.measurement else 0.0)
    return in_order[len(in_order) // 2]


@pytest.fixture(
    params=[
        *(lambda path=path: Recorded(path) for path in RECORDED),
        lambda: ByHand(MLP, MLP_MODEL, GPU),
        None,
    ],
    ids=[*(path.stem for path in RECORDED), "mlp by hand", "gpt by hand"],
    scope="module",
)
def run(request, small_run):
    """A whole run, from its baseline to its conclusion."""
    return small_run if request.param is None else played(request.param())


@pytest.fixture(scope="module")
def small_run():
    """A run on a device whose memory ends some of its trials."""
    return played(ByHand(GPT, GPT_MODEL, SMALL))


def test_a_replayed_run_comes_near_the_best_plan_of_its_table(run):
    """And confirms it, within 15 minutes of the table's time."""
    winner, speeds = run.record().winner, run.speeds()
    assert winner.confirmed
    assert speeds[winner.plan] > NEAR * max(speeds.values())
    assert run.clock.now() <= 900.0


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


def test_memory_rules_something_out_where_it_is_small(small_run):
    """The rule above is about a table on which it can be broken."""
    cap = 0.95 * SMALL.device_memory_bytes
    done = done_from_records(small_run.store.trials(1))
    seen = History(space=small_run.space, memory_cap_bytes=cap, done=done)
    larger = small_run.space.alternatives(small_run.record().winner.plan, "batch_size")
    assert any(cannot_fit(plan, seen) for plan in larger)
