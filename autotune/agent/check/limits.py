"""How far a training may become slower, larger or later to start, and what was found of that."""

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.storage.trends import TrendPoint
from autotune.trials.interval import student_t
from autotune.trials.result import Measurement

CONFIDENCE = 0.99
"""Of the intervals: they are looked at after each round, so 95 % would be too little."""
_INTERVALS = round(0.05 / (1 - CONFIDENCE))  # for which `student_t` gives that confidence
LEAST_ROUNDS = 3
"""Measurements of each side from which an answer is given."""


class Metric(enum.Enum):
    """What is compared."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    FIRST_STEP = "first step"

    def cost(self, measured: Measurement | TrendPoint) -> float | None:
        """Return the logarithm of what grows when the training gets worse; None: not known."""
        value = {
            Metric.THROUGHPUT: 1 / measured.throughput,
            Metric.MEMORY: measured.memory_bytes,
            Metric.FIRST_STEP: measured.first_step_s,
        }[self]
        return math.log(value) if value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest change for the worse of a metric.

    Attributes:
        share: 0.05 allows 5 % less throughput, or 5 % more memory or seconds.
    """

    metric: Metric
    share: float

    @property
    def cost(self) -> float:
        """The largest growth of the metric's cost, as a logarithm."""
        is_drop = self.metric is Metric.THROUGHPUT
        return -math.log1p(-self.share) if is_drop else math.log1p(self.share)


class Answer(enum.Enum):
    """Whether a metric is within its limit.

    `unknown`: its interval reaches to both sides of the limit.
    """

    WITHIN = "within the limit"
    BEYOND = "beyond the limit"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a metric differs from the reference.

    Attributes:
        limit: that it is held against.
        change: relative; -0.1 is 10 % less than the reference.
        low, high: its 99 % interval; None with fewer than two rounds.
        answer: whether it is within the limit.
    """

    limit: Limit
    change: float
    low: float | None
    high: float | None
    answer: Answer


def compare_in_turn(
    limit: Limit, now: Sequence[Measurement], reference: Sequence[Measurement]
) -> Finding | None:
    """Return what rounds say in which both sides were measured; None: the metric is not known.

    The rounds are pairs: what slows the machine for a while slows both sides of a round.
    """
    growths = _differences(limit.metric, now, reference)
    if not growths:
        return None
    half_width = _quantile(len(growths)) * _error(growths)
    is_enough = len(growths) >= LEAST_ROUNDS
    return _finding(limit, statistics.fmean(growths), half_width, is_enough=is_enough)


def compare_with_earlier(
    limit: Limit, now: Sequence[Measurement], earlier: Sequence[TrendPoint]
) -> Finding | None:
    """Return what processes say beside points of other days; None: the metric is not known.

    By how much days differ is not known from so few; hence a single drop proves nothing.
    """
    ours, theirs = _costs(limit.metric, now), _costs(limit.metric, earlier)
    if not ours or not theirs:
        return None
    growth = statistics.fmean(ours) - statistics.fmean(theirs)
    error = math.hypot(_error(ours), _error(theirs) if len(theirs) > 1 else 0.0)
    is_enough = len(ours) >= LEAST_ROUNDS
    return _finding(limit, growth, _quantile(len(ours)) * error, is_enough=is_enough)


def _differences(
    metric: Metric, now: Sequence[Measurement], reference: Sequence[Measurement]
) -> list[float]:
    costs = [(metric.cost(a), metric.cost(b)) for a, b in zip(now, reference, strict=True)]
    return [a - b for a, b in costs if a is not None and b is not None]


def _costs(metric: Metric, found: Sequence[Measurement | TrendPoint]) -> list[float]:
    costs = (metric.cost(one) for one in found)
    return [cost for cost in costs if cost is not None]


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return statistics.stdev(values) / math.sqrt(len(values))


def _quantile(count: int) -> float:
    return student_t(max(1, count - 1), _INTERVALS)


def _finding(limit: Limit, growth: float, half_width: float, *, is_enough: bool) -> Finding:
    """Return the finding for a growth of the cost, as a logarithm.

    Args:
        limit: of the metric.
        growth: the cost now over the reference's.
        half_width: of its 99 % interval; infinite: not known.
        is_enough: whether there were enough processes to answer.
    """
    low, high = growth - half_width, growth + half_width
    answer = Answer.UNKNOWN
    if is_enough and low > limit.cost:
        answer = Answer.BEYOND
    elif is_enough and high <= limit.cost:
        answer = Answer.WITHIN
    is_drop = limit.metric is Metric.THROUGHPUT
    ends = sorted((_change(low, is_drop), _change(high, is_drop)))
    is_known = math.isfinite(half_width)
    return Finding(
        limit=limit,
        change=_change(growth, is_drop),
        low=ends[0] if is_known else None,
        high=ends[1] if is_known else None,
        answer=answer,
    )


def _change(growth: float, is_drop: bool) -> float:  # noqa: FBT001  of a value, not of behaviour
    return math.expm1(-growth if is_drop else growth)
