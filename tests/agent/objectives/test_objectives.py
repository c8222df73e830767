"""What each objective makes of throughput, start-up and memory."""

import math
from dataclasses import replace

import pytest

from autotune.agent.forecast.speed import Outlook
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.objective import Expected, Figures
from autotune.agent.objectives.stored import objective_from
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_train import TimeToTrain, count_in_words
from autotune.storage.testing import make_run
from tests.agent.world import GIB

BASELINE = Figures(throughput=50.0, start_s=1.0, memory_bytes=20 * GIB)


@pytest.mark.parametrize(
    "objective",
    [
        FASTEST,
        TimeToTrain(samples=10_000_000),
        LeastMemory(min_throughput=250.0),
        LeastMemory(min_share=0.9),
    ],
)
def test_an_objective_is_what_it_was_written_down_as(objective):
    """What a store keeps of it gives it back."""
    assert objective_from(objective.to_dict()) == objective


def test_runs_of_before_there_was_a_choice_looked_for_throughput():
    """Their options say nothing of it."""
    assert objective_from(make_run().objective) == FASTEST


def test_compiling_pays_from_a_number_of_samples_on():
    """Twice as fast after a minute of compiling: sooner through from 6000 samples on."""
    own = Figures(throughput=100.0, start_s=61.0)
    for samples, is_better in ((5_900, False), (6_100, True)):
        objective = TimeToTrain(samples=samples)
        better = objective.value(own, BASELINE) > objective.value(BASELINE, BASELINE)
        assert better is objective.is_better(own, BASELINE, 2.0) is is_better
    # The low end of the speed-up's interval decides.
    assert not TimeToTrain(samples=6_100).is_better(own, BASELINE, 1.9)


def test_the_value_of_memory_counts_only_for_plans_that_are_fast_enough():
    """A smaller plan that is too slow is worth nothing, nor is one of unknown memory."""
    objective = LeastMemory(min_throughput=40.0)
    small = Figures(throughput=41.0, memory_bytes=10 * GIB)
    assert objective.value(small, BASELINE) == 2 * objective.value(BASELINE, BASELINE)
    assert objective.value(replace(small, throughput=39.0), BASELINE) == 0.0
    assert objective.value(replace(small, memory_bytes=None), BASELINE) == 0.0
    assert LeastMemory(min_share=0.9).value(small, BASELINE) == 0.0


@pytest.mark.parametrize(
    ("objective", "threshold"),
    [
        (FASTEST, 0.95 * 100.0),
        # 10 s of start-up and 10 s of steps: who needs more than 20 s / 0.95 for steps is late.
        (TimeToTrain(samples=1000), 0.95 * 50.0),
        (LeastMemory(min_throughput=80.0), 0.95 * 80.0),
        # Nothing is fast enough yet: what is faster than the best is interesting.
        (LeastMemory(min_throughput=300.0), 0.95 * 100.0),
    ],
)
def test_a_trial_is_cut_short_only_when_it_cannot_win(objective, threshold):
    """However short its start-up, and however small it is."""
    best = Figures(throughput=100.0, start_s=10.0, memory_bytes=GIB)
    assert objective.interesting_above(best, BASELINE, 0.95) == pytest.approx(threshold)


def test_one_device_is_asked_for_its_part():
    """Scouts on one of four devices have a quarter of the samples, and of the throughput."""
    assert TimeToTrain(samples=1000).for_part(0.25) == TimeToTrain(samples=250)
    assert LeastMemory(min_throughput=80.0).for_part(0.25) == LeastMemory(min_throughput=20.0)
    assert LeastMemory(min_share=0.9).for_part(0.25) == LeastMemory(min_share=0.9)


def test_start_up_makes_an_expected_speed_matter_less():
    """Half of the time is start-up, so half of the doubt about speed is left."""
    expected = Expected(speed=Outlook(log_mean=math.log(100.0), log_std=0.2), start_s=10.0)
    weighed = TimeToTrain(samples=1000).weigh(expected, BASELINE)
    assert weighed.log_mean == pytest.approx(-math.log(20.0))
    assert weighed.log_std == pytest.approx(0.1)


def test_numbers_of_samples_are_said_as_people_say_them():
    """Millions and billions by their letter, less in full."""
    counts = [2_000, 10_000_000, 1_500_000_000, 10_500_000]
    assert [count_in_words(n) for n in counts] == ["2,000", "10M", "1.5B", "10.5M"]
