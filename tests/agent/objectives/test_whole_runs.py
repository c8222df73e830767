"""What is looked for decides who wins a run, and what is tried in it."""

from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.search_space.space import Narrowing
from autotune.trials.result import Purpose
from tests.agent.world import GIB, GPT, GPT_MODEL, GPU, Table, World

COMPILED_FIRST_STEP_S = 10.0  # of `default` in the replayed world


def run(objective, budget_s=600, world=None, **kwargs):
    settings = {"max_trials": 15, "objective": objective}
    table = Table(world or World(GPT_MODEL), GPT, budget_s, settings=settings, **kwargs)
    return table, table.search().run()


def test_for_few_samples_nothing_is_compiled():
    """Compiling takes longer than the training; the modes that take minutes are not even tried."""
    table, winner = run(TimeToTrain(samples=1000))
    assert winner.plan["compile_mode"] == "off"
    assert winner.own.train_s < winner.baseline.train_s
    assert {r.plan["compile_mode"] for r in table.store.trials(1)} <= {"off", "default"}


@pytest.fixture(scope="module")
def for_many_samples():
    """A whole run that looks for the least time to train on ten million samples."""
    return run(TimeToTrain(samples=10_000_000))


def test_for_many_samples_the_fastest_wins(for_many_samples):
    """Seconds of compiling are nothing beside hours, and the user reads both times."""
    _, winner = for_many_samples
    assert winner.plan["compile_mode"] != "off"
    assert winner.own.start_s > COMPILED_FIRST_STEP_S
    steps_s = 10_000_000 / winner.own.throughput
    assert winner.own.train_s == pytest.approx(winner.own.start_s + steps_s)
    assert winner.baseline.train_s == pytest.approx(
        winner.baseline.start_s + 10_000_000 / winner.baseline.throughput, rel=0.02
    )
    assert winner.remarks[0].endswith("instead of 1.5 s")
    assert "instead of 52h" in winner.remarks[0]
    assert "for 10M samples" in winner.remarks[0]


def test_confirmations_do_not_hide_what_compiling_took(for_many_samples):
    """Warm processes of the winner leave its start-up what the cold one showed."""
    table, winner = for_many_samples
    again = [
        r.result.measurement.first_step_s
        for r in table.store.trials(1)
        if r.purpose is Purpose.CONFIRM and r.plan == winner.plan
    ]
    assert max(again) < COMPILED_FIRST_STEP_S < winner.own.start_s


def test_where_compiling_is_all_there_is_few_samples_keep_the_baseline():
    """Compiling made it faster, and did not pay: keeping the baseline is the answer."""
    narrowing = Narrowing(knobs=("compile_mode", "compile_scope"))
    table, winner = run(TimeToTrain(samples=500), narrowing=narrowing)
    assert winner.kept_baseline
    assert winner.own.train_s == winner.baseline.train_s == pytest.approx(1.5 + 500 / 53, rel=0.1)
    speeds = [r.result.measurement.throughput for r in table.store.trials(1)]
    assert max(speeds) > 1.1 * winner.own.throughput
    assert "for 500 samples, 1.5 s of it start-up" in winner.remarks[0]


def test_the_least_memory_at_the_speed_asked_for():
    """The winner is the smallest confirmed plan that is fast enough, and small indeed."""
    table, winner = run(LeastMemory(min_throughput=300.0), budget_s=1200)
    assert winner.confirmed
    assert winner.own.throughput >= 300.0
    fast = [
        record.result.measurement.memory_bytes
        for record in table.store.trials(1)
        if record.purpose in SEARCH
        and record.result.measurement
        and record.result.measurement.throughput > 1.03 * 300.0
    ]
    assert winner.own.memory_bytes <= min(fast)
    assert winner.own.memory_bytes < 10 * GIB
    assert "GiB instead of 28.00 GiB" in winner.remarks[0]
    assert "300 samples/s was asked for" in winner.remarks[0]
    assert winner.own.train_s is None


def test_a_part_of_the_baselines_speed_may_be_asked_for():
    """90 % of the baseline's throughput leaves room for checkpointing and small batches."""
    _, winner = run(LeastMemory(min_share=0.9))
    assert winner.own.throughput >= 0.9 * winner.baseline.throughput
    assert winner.own.memory_bytes < 6 * GIB


def test_where_nothing_is_fast_enough_the_baseline_is_kept_and_says_so():
    """The user reads what the fastest gave, and what to do."""
    table, winner = run(LeastMemory(min_throughput=3000.0))
    assert winner.kept_baseline
    assert winner.plan == table.space.baseline
    assert any("no plan reaches 3,000 samples/s" in line for line in winner.remarks)
    assert any("lower --min-throughput" in line for line in winner.remarks)
    assert not any(r.purpose is Purpose.CONFIRM for r in table.store.trials(1))


def test_where_the_baseline_is_too_slow_a_larger_plan_may_win():
    """Fast enough comes before small: the baseline that is neither does not win."""
    narrowing = Narrowing(knobs=("batch_size",))
    model = replace(GPT_MODEL, half_batch=40.0)
    _, winner = run(LeastMemory(min_throughput=33.0), world=World(model), narrowing=narrowing)
    assert not winner.kept_baseline
    assert winner.own.memory_bytes > winner.baseline.memory_bytes
    assert winner.own.throughput >= 33.0 > winner.baseline.throughput
    assert "which it does not reach" in winner.remarks[0]


def test_scouts_look_for_the_same():
    """One-device trials are judged by their part of what all devices are asked for."""
    settings = {"max_trials": 15, "objective": LeastMemory(min_throughput=600.0)}
    world = World(GPT_MODEL, hardware=replace(GPU, num_devices=2))
    table = Table(world, GPT, 1200, settings=settings, num_ranks=2)
    winner = table.search().run()
    assert winner.own.throughput >= 600.0
    scouting = [r.interesting_above for r in world.requests if r.place.world_size == 1]
    assert max(above for above in scouting if above) <= 300.0
