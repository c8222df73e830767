"""The speed-up of a plan over the baseline, with its 95 % interval over fresh processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.storage.figures import Interval
from autotune.trials.interval import student_t

# Degrees of freedom below which rounds get no effect of their own: with a single one an interval
# is three times as wide as with two.
_ENOUGH_DEGREES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """A ratio of throughputs and its 95 % interval.

    Attributes:
        low: lower end of the interval.
        high: upper end of the interval.
        how: how the interval was obtained, in words.
    """

    ratio: float
    low: float
    high: float
    how: str

    @property
    def interval(self) -> Interval:
        """The ratio with its interval, as the store keeps it."""
        return Interval(ratio=self.ratio, low=self.low, high=self.high)

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the log ratio."""
        return math.log(self.high / self.low) / 2


def pooled(
    throughputs: Mapping[str, Sequence[tuple[int, float]]], winner: str, baseline: str
) -> Speedup | None:
    """Return the speed-up from repeats of several plans, None if no plan was repeated.

    A machine that is faster in one round than in another is so for all plans, so an effect of
    each round is fitted, as in randomised blocks (Montgomery, Design and Analysis of Experiments,
    chapter 4), as far as that leaves two degrees of freedom.

    The fastest of several looks faster than it is, so the interval holds for all of them
    together (Bonferroni): each has 95 % over the number of plans beside the baseline.

    The logarithms of all plans share one variance between processes (repeats of one plan vary
    by the same few percent, fast or slow), so the other finalists sharpen it. Welch's correction
    is not used: with two or three repeats each it would cost more degrees of freedom than the
    assumption costs truth.

    Args:
        throughputs: by a plan's key, pairs of a round's number and a throughput.
        winner: key of the plan whose speed-up is asked for.
        baseline: key of the baseline.
    """
    fit = _least_squares(throughputs, winner, baseline, by_round=True)
    if fit.degrees < _ENOUGH_DEGREES:
        fit = _least_squares(throughputs, winner, baseline, by_round=False)
    if fit.degrees == 0:
        return None
    num_finalists = len(throughputs) - 1
    how = f"{len(throughputs[baseline])} rounds of fresh processes, baseline and finalists in turn"
    if num_finalists > 1:
        how += f"; the interval allows for choosing among {num_finalists}"
    return around(fit.log_ratio, student_t(fit.degrees, num_finalists) * fit.error, how)


@dataclass(frozen=True, slots=True)
class _Fit:
    """The logarithm of a ratio of two plans, its standard error and the degrees of freedom."""

    log_ratio: float
    error: float
    degrees: int


def _least_squares(
    throughputs: Mapping[str, Sequence[tuple[int, float]]],
    winner: str,
    baseline: str,
    *,
    by_round: bool,
) -> _Fit:
    """Fit log throughput = plan (+ round); rounds that not every plan took part in are fine."""
    runs = [(p, r, math.log(v)) for p, repeats in throughputs.items() for r, v in repeats]
    plans, (_, *later_rounds) = list(throughputs), sorted({r for _, r, _ in runs})
    columns = [[float(plan == own) for own, _, _ in runs] for plan in plans]
    if by_round:
        columns += [[float(r == own) for _, own, _ in runs] for r in later_rounds]
    design, logs = np.array(columns).T, np.array([log for _, _, log in runs])
    contrast = np.zeros(len(columns))
    contrast[plans.index(winner)], contrast[plans.index(baseline)] = 1.0, -1.0
    solution, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    degrees = len(runs) - int(rank)
    misfit = float(np.sum((logs - design @ solution) ** 2))
    variance = contrast @ np.linalg.pinv(design.T @ design) @ contrast
    error = math.sqrt(misfit / degrees * variance) if degrees else math.inf
    return _Fit(log_ratio=float(contrast @ solution), error=error, degrees=degrees)


def around(log_ratio: float, half_width: float, how: str) -> Speedup:
    """Return the speed-up with this log and this half width of the interval of its log."""
    return Speedup(
        ratio=math.exp(log_ratio),
        low=math.exp(log_ratio - half_width),
        high=math.exp(log_ratio + half_width),
        how=how,
    )
