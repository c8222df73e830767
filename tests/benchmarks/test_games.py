"""The comparison of strategies is fair: all play the same table, and pay for what they measure."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.dispatch.table import Table
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.request import Protocol
from autotune.trials.result import Outcome, TrialResult
from tests.agent.world import GIB, GPT, GPT_MODEL, GPU, ok
from tests.dispatch.test_table import measured

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
KNOBS = ("precision", "optimizer_impl", "compile_mode", "batch_size")
OOM = TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=5.0)


@pytest.fixture(scope="module")
def comparison():
    """The modules of the comparison, which are scripts beside each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [BENCHMARKS, *sys.path])
        import drift
        import games
        import players

        yield SimpleNamespace(drift=drift, games=games, play=players.play)


@pytest.fixture(scope="module")
def table():
    """A table of all plans of four knobs, the largest batches out of memory."""
    space = build_space(GPT, GPU, Narrowing(knobs=KNOBS))
    rows = tuple((plan, result_of(plan)) for plan in space.enumerate())
    hardware, protocol = GPU, Protocol()
    return Table(name="gpt", hardware=hardware, facts=GPT, protocol=protocol, how="", rows=rows)


def result_of(plan):
    memory, (speed, wait) = GPT_MODEL.memory(plan), GPT_MODEL.throughput(plan)
    compiling_s = 0.0 if plan["compile_mode"] == "off" else 20.0
    if memory > GPU.device_memory_bytes:
        return OOM
    return ok(speed, wait=wait, memory=memory, total_s=6.0 + compiling_s)


NAMES = (
    "autotune",
    "Optuna TPE",
    "Optuna TPE, multivariate",
    "one knob at a time",
    "random",
    "DeepSpeed's procedure",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_pays_for_what_it_measures(comparison, table, name):
    """The seconds are those of its trials, and what it found so far only grows."""
    game = comparison.games.Game(table, memory_cap_bytes=133 * GIB, seed=1)
    paid = []
    pay = game.pay
    game.pay = lambda plan, result: (paid.append(result.total_s), pay(plan, result))
    comparison.play(name, game)
    assert game.spent_s == pytest.approx(sum(paid))
    assert game.progress == sorted(game.progress)
    assert 0 < game.progress[-1][1] <= 1


def test_the_agent_comes_near_the_best_of_a_simple_table_sooner_than_random_search(
    comparison, table
):
    """Of a simple table; in device-seconds, of which compiling takes most."""

    def seconds(name, seed):
        game = comparison.games.Game(table, memory_cap_bytes=133 * GIB, seed=seed)
        return comparison.play(name, game).seconds_to(0.98)

    assert 3 * seconds("autotune", 0) < sorted(seconds("random", seed) for seed in range(9))[4]


def test_a_plan_that_leaves_no_headroom_is_no_find(comparison, table):
    """However fast it is."""
    tight = comparison.games.Game(table, memory_cap_bytes=60 * GIB, seed=0)
    large = table.space.plan({"batch_size": 64, "precision": "fp32"})
    assert tight.truth[large] == 0
    assert comparison.games.Game(table, memory_cap_bytes=133 * GIB, seed=0).truth[large] > 0


def test_seeds_see_other_draws_of_the_same_windows(comparison, table):
    """A result without windows is what it is; no draw is beyond the windows."""
    baseline, other = table.space.baseline, table.space.plan({"precision": "bf16"})
    rows = [row for row in table.rows if row[0] != other]
    windows = replace(table, rows=(*rows, (other, measured(90, 100, 110, 95))))
    draws = [
        comparison.games.Game(windows, memory_cap_bytes=133 * GIB, seed=seed).results
        for seed in range(5)
    ]
    assert {draw[baseline] for draw in draws} == {table.results[baseline][0]}
    speeds = {draw[other].measurement.throughput for draw in draws}
    assert len(speeds) > 1
    assert min(speeds) >= 90
    assert max(speeds) <= 110


def test_a_machine_that_slows_down_and_recovers_does_not_decide_which_plan_is_best(comparison):
    """Plans measured again show how its minutes were; one measured in a bad one is as good."""
    good, fair, late = "good", "fair", "late"
    minutes = [1.0] * 8 + [0.8] * 8 + [1.0] * 8
    rows = [(good if i % 2 else fair, 100 * m if i % 2 else 90 * m) for i, m in enumerate(minutes)]
    rows[12] = (late, 0.8 * 95)
    found = comparison.drift.steady(rows, lambda speed: speed)
    assert found == pytest.approx({good: 100, fair: 90, late: 95}, rel=0.01)


def test_a_plan_that_failed_once_tells_nothing_of_its_minute(comparison):
    """And plans measured once are taken as they are."""
    rows = [("once", 50.0), ("failed", 0.0), ("failed", 40.0), ("failed", 42.0)]
    assert comparison.drift.steady(rows, lambda speed: speed) == {"once": 50.0, "failed": 40.0}
