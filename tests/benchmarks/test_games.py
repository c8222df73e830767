"""The comparison of strategies is fair: all play the same table, and pay for what they measure."""

import sys
from dataclasses import replace
from pathlib import Path

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
def players():
    """The modules of the comparison, which are scripts beside each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [BENCHMARKS, *sys.path])
        import games
        import players

        yield games, players


@pytest.fixture(scope="module")
def table():
    """A table of all plans of four knobs, the largest batches out of memory."""
    space = build_space(GPT, GPU, Narrowing(knobs=KNOBS))
    results = {plan: (result_of(plan),) for plan in space.enumerate()}
    hardware, protocol = GPU, Protocol()
    return Table(
        name="gpt", hardware=hardware, facts=GPT, protocol=protocol, how="", results=results
    )


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
def test_a_strategy_pays_for_what_it_measures(players, table, name):
    """The seconds are those of its trials, and what it found so far only grows."""
    games, strategies = players
    game = games.Game(table, memory_cap_bytes=133 * GIB, seed=1)
    paid = []
    pay = game.pay
    game.pay = lambda plan, result: (paid.append(result.total_s), pay(plan, result))
    strategies.play(name, game)
    assert game.spent_s == pytest.approx(sum(paid))
    assert game.progress == sorted(game.progress)
    assert 0 < game.progress[-1][1] <= 1


def test_the_agent_comes_near_the_best_of_a_simple_table_sooner_than_random_search(players, table):
    """In device-seconds, of which compiling takes most."""
    games, strategies = players

    def seconds(name, seed):
        game = games.Game(table, memory_cap_bytes=133 * GIB, seed=seed)
        return strategies.play(name, game).seconds_to(0.98)

    assert 3 * seconds("autotune", 0) < sorted(seconds("random", seed) for seed in range(9))[4]


def test_a_plan_that_leaves_no_headroom_is_no_find(players, table):
    """However fast it is."""
    games, _ = players
    tight = games.Game(table, memory_cap_bytes=60 * GIB, seed=0)
    large = table.space.plan({"batch_size": 64, "precision": "fp32"})
    assert tight.truth[large] == 0
    assert games.Game(table, memory_cap_bytes=133 * GIB, seed=0).truth[large] > 0


def test_seeds_see_other_draws_of_the_same_windows(players, table):
    """A result without windows is what it is; no draw is beyond the windows."""
    games, _ = players
    baseline, other = table.space.baseline, table.space.plan({"precision": "bf16"})
    windows = replace(table, results={**table.results, other: (measured(90, 100, 110, 95),)})
    draws = [
        games.Game(windows, memory_cap_bytes=133 * GIB, seed=seed).results for seed in range(5)
    ]
    assert {draw[baseline] for draw in draws} == {table.results[baseline][0]}
    speeds = {draw[other].measurement.throughput for draw in draws}
    assert len(speeds) > 1
    assert min(speeds) >= 90
    assert max(speeds) <= 110
