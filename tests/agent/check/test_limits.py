"""Whether a metric is within its limit, from a few processes."""

import math
import random

import pytest

from autotune.agent.check.limits import (
    Answer,
    Limit,
    Metric,
    compare_in_turn,
    compare_with_earlier,
)
from autotune.storage.testing import make_measurement, make_trend_point

DROP = Limit(metric=Metric.THROUGHPUT, share=0.05)
MEMORY = Limit(metric=Metric.MEMORY, share=0.05)
FIRST_STEP = Limit(metric=Metric.FIRST_STEP, share=0.5)


def speeds(*throughputs):
    return [make_measurement(throughput) for throughput in throughputs]


@pytest.mark.parametrize(
    ("now", "answer"),
    [
        ((90.0, 91.0, 90.5), Answer.BEYOND),
        ((99.5, 100.5, 100.0), Answer.WITHIN),
        ((120.0, 121.0, 120.5), Answer.WITHIN),
        ((80.0, 110.0, 100.0), Answer.UNKNOWN),
        ((50.0, 50.0), Answer.UNKNOWN),
    ],
)
def test_a_drop_is_beyond_its_limit_when_its_whole_interval_is(now, answer):
    """Two rounds are too few for any answer."""
    found = compare_in_turn(DROP, speeds(*now), speeds(*[100.0, 101.0, 100.5][: len(now)]))
    assert found.answer is answer


def test_what_slows_both_sides_of_a_round_is_no_noise():
    """A machine that is half as fast in one round tells as much as in the others."""
    found = compare_in_turn(DROP, speeds(90, 45, 180), speeds(100, 50, 200))
    assert found.change == pytest.approx(-0.1)
    assert found.low == pytest.approx(found.high)
    assert found.answer is Answer.BEYOND


def test_more_memory_and_a_longer_first_step_are_changes_for_the_worse():
    """Less of them is none."""
    less, more = [make_measurement(1.0, peak_reserved_overall_bytes=n) for n in (1000, 1200)]
    assert compare_in_turn(MEMORY, [more] * 3, [less] * 3).answer is Answer.BEYOND
    assert compare_in_turn(MEMORY, [more] * 3, [less] * 3).change == pytest.approx(0.2)
    assert compare_in_turn(MEMORY, [less] * 3, [more] * 3).answer is Answer.WITHIN
    short, long = [make_measurement(1.0, first_step_s=s) for s in (1.0, 2.0)]
    assert compare_in_turn(FIRST_STEP, [long] * 3, [short] * 3).answer is Answer.BEYOND


def test_a_metric_that_was_not_measured_has_no_answer():
    """Memory is not known everywhere."""
    unknown = make_measurement(1.0, peak_host_bytes=None, peak_reserved_overall_bytes=None)
    assert compare_in_turn(MEMORY, [unknown] * 3, [unknown] * 3) is None


def test_earlier_points_are_compared_by_their_mean():
    """Their own spread widens the interval."""
    near = [make_trend_point(throughput) for throughput in (100.0, 100.5, 101.0)]
    far = [make_trend_point(throughput) for throughput in (80.0, 100.0, 120.0)]
    now = speeds(90.0, 90.2, 90.1)
    assert compare_with_earlier(DROP, now, near).answer is Answer.BEYOND
    assert compare_with_earlier(DROP, now, far).answer is Answer.UNKNOWN
    assert compare_with_earlier(DROP, now, []) is None


def test_equal_sides_are_seldom_beyond_the_limit():
    """Looked at after each of up to twelve rounds, with 3 % between processes."""
    rng = random.Random(0)
    failed = 0
    for _ in range(400):
        sides = [
            speeds(*(100 * math.exp(rng.gauss(0, 0.03)) for _ in range(12))) for _ in range(2)
        ]
        looks = (compare_in_turn(DROP, *(side[:n] for side in sides)) for n in range(3, 13))
        failed += any(found.answer is Answer.BEYOND for found in looks)
    assert failed <= 2
