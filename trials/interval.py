"""Confidence intervals of a mean from a few values."""

import functools
import math
import statistics
from collections.abc import Sequence

_MIN_VALUES = 3  # from which `is_below` judges a mean


def relative_half_width(values: Sequence[float]) -> float:
    """Return the half width of the mean's 95 % interval relative to the mean.

    Infinite for fewer than two values.
    """
    if len(values) < 2:
        return math.inf
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return student_t(len(values) - 1) * error / mean


def is_below(values: Sequence[float], limit: float) -> bool:
    """Whether the mean's 95 % interval ends below `limit`; False for fewer than three values."""
    if len(values) < _MIN_VALUES:
        return False
    return statistics.fmean(values) * (1 + relative_half_width(values)) < limit


@functools.cache
def student_t(degrees: int, num_intervals: int = 1) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution, `degrees` >= 1.

    For several intervals it is the quantile with which all of them hold together with 95 %
    (Bonferroni).
    """
    confidence = 1 - 0.05 / num_intervals
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| < sqrt(degrees) tan(angle)), from Abramowitz & Stegun 26.7.3 and 26.7.4."""
    odd = degrees % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
