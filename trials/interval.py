"""Confidence intervals of a mean from a few values."""

import math
import statistics
from collections.abc import Sequence

_ENOUGH_TO_RACE = 3

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (any statistics table).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student_t95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution, `degrees` >= 1."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    # First terms of the Cornish-Fisher expansion; off by less than 0.001 from 30 degrees on.
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def relative_half_width(values: Sequence[float]) -> float:
    """Return the half width of the mean's 95 % interval over the mean; inf below two values."""
    if len(values) < 2:
        return math.inf
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return student_t95(len(values) - 1) * error / mean


def is_below(values: Sequence[float], limit: float) -> bool:
    """Whether the mean's 95 % interval ends below `limit`; not so with fewer than three values."""
    if len(values) < _ENOUGH_TO_RACE:
        return False
    return statistics.fmean(values) * (1 + relative_half_width(values)) < limit
