"""The conclusion of a history under each objective."""

from dataclasses import replace

from autotune.agent.conclusion.conclude import conclude
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.trials.result import Purpose
from tests.agent.histories import history_for
from tests.agent.world import GIB, ok

COMPILED = {"compile_mode": "default"}


def test_where_another_plan_starts_too_slowly_the_user_reads_so():
    """It was measured, and is twice as fast, but not in time."""
    slow = ({"precision": "bf16"}, ok(100.0, first_step_s=20.0))
    winner = conclude(history_for(TimeToTrain(samples=500), ({}, ok(50.0)), slow), 0.01)
    assert winner.kept_baseline
    assert any("would train on 500 samples in less time" in line for line in winner.remarks)


def test_a_faster_plan_that_is_through_later_is_not_chosen():
    """Confirmed as faster, but compiled for longer than that saves: the baseline is kept."""
    confirm = Purpose.CONFIRM
    seen = history_for(
        TimeToTrain(samples=1000),
        ({}, ok(50.0)),
        (COMPILED, ok(60.0, first_step_s=4.0)),
        *(
            trial
            for _ in range(2)
            for trial in (
                ({}, ok(50.0), confirm),
                (COMPILED, ok(60.0, first_step_s=8.0), confirm),
            )
        ),
    )
    winner = conclude(seen, 0.01)
    assert winner.kept_baseline
    assert winner.confirmed
    kept = next(line for line in winner.remarks if line.startswith("keep your baseline"))
    assert "the best other plan is compile_mode=" in kept
    assert "25.2 s instead of 21.5 s for 1,000 samples" in kept
    many = replace(seen, objective=TimeToTrain(samples=10_000))
    assert not conclude(many, 0.01).kept_baseline
    assert not conclude(replace(seen, objective=FASTEST), 0.01).kept_baseline


def test_a_finalist_that_turns_out_too_slow_does_not_win():
    """Fast enough in the search, too slow twice in the confirmation: passed over, with a word."""
    confirm, small = Purpose.CONFIRM, {"batch_size": 8}
    seen = history_for(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        (small, ok(46.0, memory=10 * GIB)),
        ({}, ok(50.0, memory=20 * GIB), confirm),
        (small, ok(44.0, memory=10 * GIB), confirm),
    )
    winner = conclude(seen, 0.01)
    assert winner.kept_baseline
    (why,) = [line for line in winner.remarks if line.startswith("passed over")]
    assert why.startswith("passed over, although small: batch_size=8: it gives 44 samples/s")


def test_a_peak_that_is_hardly_smaller_keeps_the_baseline():
    """One percent less memory is what two processes of one plan differ by."""
    confirm, other = Purpose.CONFIRM, {"optimizer_impl": "foreach"}
    peak = int(19.8 * GIB)
    seen = history_for(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        (other, ok(50.0, memory=peak)),
        ({}, ok(50.0, memory=20 * GIB), confirm),
        (other, ok(50.0, memory=peak), confirm),
    )
    assert conclude(seen, 0.01).kept_baseline
    # Nor is it a reason to name it where nothing could be confirmed.
    assert conclude(replace(seen, done=seen.done[:2]), 0.01).kept_baseline


def test_an_interrupted_run_names_the_best_by_its_objective():
    """Not confirmed, but what was looked for: the smallest that is fast enough."""
    seen = history_for(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        ({"precision": "bf16"}, ok(300.0, memory=15 * GIB)),
        ({"batch_size": 8}, ok(46.0, memory=10 * GIB)),
        ({"batch_size": 4}, ok(30.0, memory=5 * GIB)),
    )
    assert conclude(seen, 0.01).plan["batch_size"] == 8
