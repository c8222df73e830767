"""Confidence intervals."""

import math
import random

import pytest

from autotune.trials.interval import relative_half_width, student_t


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)],
)
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    """Small samples use Student's t, not the normal distribution."""
    assert student_t(degrees) == pytest.approx(quantile, abs=5e-4)


def test_several_intervals_that_are_to_hold_together_are_wider():
    """Three at 98.3 % each."""
    assert student_t(4, 3) == pytest.approx(3.961, abs=1e-3)


def test_one_value_has_no_interval():
    """Nothing is known about the spread of one value."""
    assert relative_half_width([3.0]) == math.inf


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """Over many samples of five, about 95 % of the intervals hold the true mean."""
    random.seed(0)
    covered = 0
    for _ in range(2000):
        values = [random.gauss(100, 2) for _ in range(5)]
        mean = sum(values) / 5
        covered += abs(mean - 100) <= relative_half_width(values) * mean
    assert 0.935 < covered / 2000 < 0.965
