"""The speed-up of a plan over the baseline, with its 95 % interval over fresh processes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.agent.done import Done
from autotune.agent.history import SEARCH, conclusive
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval
from autotune.trials.interval import student_t
from autotune.trials.result import Measurement, Purpose

# Degrees of freedom below which rounds get no effect of their own: with a single one an interval
# is three times as wide as with two.
_ENOUGH_DEGREES = 2
# Standard deviation of the log throughput between processes of a plan on a usual machine (0.2 to
# 3 % were measured on several), and the degrees of freedom that this prior counts for.
_USUAL_PROCESS_STD, _USUAL_DEGREES = 0.03, 2


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


def speedup_of(plan: Plan, baseline: Done, done: Sequence[Done]) -> Speedup:
    """Return the speed-up of a confirmed plan with its interval, from repeats or one round.

    Args:
        plan: has a measured confirmation.
        baseline: the first measured trial of the baseline.
        done: the finished trials of the run, on as many ranks.
    """
    again = [trial for trial in done if trial.purpose is Purpose.CONFIRM]
    repeats, own = _repeats(again, baseline.plan), baseline.plan.digest
    found = own in repeats and pooled(repeats, plan.digest, own)
    return found or _from_one_round(plan, baseline, done)


def _repeats(again: Sequence[Done], baseline: Plan) -> dict[str, list[tuple[int, float]]]:
    """Return by plan the throughput of each confirmation, with the number of its round.

    A round begins with the baseline. A plan that became a finalist late is thus compared with
    processes that ran at about the same time.
    """
    repeats: dict[str, list[tuple[int, float]]] = {}
    number = 0
    for trial in again:
        number += trial.plan == baseline
        if trial.is_measured:
            repeats.setdefault(trial.plan.digest, []).append((number, trial.throughput))
    return repeats


def _from_one_round(plan: Plan, baseline: Done, done: Sequence[Done]) -> Speedup:
    """Return the speed-up from one confirmation of the plan.

    The measurements of the search only serve to estimate how processes of a plan differ.
    """
    again = [trial for trial in done if trial.purpose is Purpose.CONFIRM]
    before = {t.plan: t for t in done if t.purpose in {*SEARCH, Purpose.ABLATE} and t.is_measured}
    ours = _first_measured(t for t in again if t.plan == plan)
    own = [trial for trial in again if trial.plan == baseline.plan]
    # Until the baseline has one, it is compared by its first process, which no selection by speed
    # has biased.
    theirs = _first_measured(own if conclusive(own) else [baseline])
    moved = [ours, theirs] if any(trial.is_measured for trial in own) else [ours]
    moves = [
        math.log(now.throughput / before[now.plan].throughput)
        for now in moved
        if now.plan in before
    ]
    # Each move is the log ratio of two processes, so it has twice the variance of one.
    seen = sum(move**2 / 2 for move in moves)
    degrees = len(moves) + _USUAL_DEGREES
    between = math.sqrt((seen + _USUAL_DEGREES * _USUAL_PROCESS_STD**2) / degrees)
    factor = student_t(degrees, max(1, len({trial.plan for trial in again}) - 1))
    windows = math.hypot(*(_measurement(trial).log_half_width for trial in (ours, theirs)))
    how = "one fresh process of each, as there was no time for a second"
    if len(moved) == 1:
        how = "a fresh process of the plan and the baseline's first one, as there was no more time"
    return around(
        math.log(ours.throughput / theirs.throughput),
        max(windows, factor * between * math.sqrt(2)),
        f"{how}; the interval covers noise within them, how much plans changed since the search "
        "and how much processes of one plan usually differ",
    )


def _first_measured(trials: Iterable[Done]) -> Done:
    return next(trial for trial in trials if trial.is_measured)


def _measurement(trial: Done) -> Measurement:
    assert trial.result.measurement is not None
    return trial.result.measurement


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
