"""Estimates what settings of a winner are worth, from all measured plans of its run.

The logarithm of what was measured is modelled as a sum of an effect for each setting, a Bayesian
linear regression over all measured plans (Gelman et al., Bayesian Data Analysis, chapter 14). The
winner without one of its settings tells what that one is worth; other plans weigh the less, the
more they differ from both the baseline and the winner, as effects of settings do not add up
exactly. The effects are then made to add up to the winner's.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.report.verdict import MOST_SPREAD
from autotune.search_space.changes import changes
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, Value
from autotune.storage.records import TrialRecord
from autotune.trials.result import Purpose

# Prior standard deviation of a setting's effect, in the logarithm: a factor of 2.7 either way.
_EFFECT_STD = 1.0
# Standard deviation of a plan's log throughput between processes (0.2 to 3 % were measured on
# several machines), and the degrees of freedom that this prior counts for.
_PROCESS_STD, _PROCESS_DEGREES = 0.02, 2
_RACED_STD = 0.05  # further standard deviation of a trial that was stopped early
# Standard deviation of a plan's log throughput from the sum of its effects, for each setting by
# which it differs from the baseline or from the winner, whichever is nearer.
_MISFIT_STD = 0.05
SURE = 1.96  # standard deviations on each side of a 95 % interval

Array = NDArray[np.float64]
Setting = tuple[str, Value]
"""A knob and the winner's value of it."""


@dataclass(frozen=True, slots=True)
class SeenPlan:
    """All measurements of one plan: their mean logarithm and its variance.

    Attributes:
        is_flip: it was measured for what one of the winner's settings is worth.
    """

    plan: Plan
    log: float
    variance: float
    is_flip: bool


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of the winner's settings in the logarithm: means and covariance.

    Attributes:
        members: for each effect the settings it belongs to, as positions.
    """

    members: list[list[int]]
    mean: Array
    covariance: Array

    def half_width(self, number: int) -> float:
        """Return half of the effect's 95 % interval."""
        return SURE * math.sqrt(max(0.0, float(self.covariance[number, number])))

    def is_sure(self, number: int) -> bool:
        """Whether the effect's interval holds no 0."""
        return abs(float(self.mean[number])) > self.half_width(number)

    def is_known(self, number: int) -> bool:
        """Whether the effect's interval is narrower than tenfold."""
        return 2 * self.half_width(number) <= math.log(MOST_SPREAD)

    def merged(self, groups: Sequence[Sequence[int]]) -> "Effects":
        """Return the effects with each group's added up."""
        sums = np.zeros((len(groups), len(self.members)))
        for row, group in enumerate(groups):
            sums[row, list(group)] = 1.0
        return Effects(
            [[m for number in group for m in self.members[number]] for group in groups],
            sums @ self.mean,
            sums @ self.covariance @ sums.T,
        )


def settings_of(winner: Plan, baseline: Plan) -> list[Setting]:
    """Return what the winner sets; accumulation follows from the batch and is left out."""
    return [
        (name, value)
        for name, value in sorted(changes(winner, baseline).items())
        if value is not None and name != FOLLOWS
    ]


def figure_of(trial: TrialRecord, *, is_memory: bool) -> float | None:
    """Return a measured trial's peak in bytes, None where unknown, or its samples per second."""
    assert trial.result is not None
    measured = trial.result.measurement
    assert measured is not None
    return measured.memory_bytes if is_memory else measured.throughput


def seen_plans(trials: Sequence[TrialRecord], *, is_memory: bool) -> list[SeenPlan]:
    """Return each plan with the mean of its measurements and the variance of that mean."""
    flips = {trial.plan for trial in trials if trial.purpose is Purpose.ABLATE}
    logs: dict[Plan, list[float]] = defaultdict(list)
    own: dict[Plan, list[float]] = defaultdict(list)
    for trial in trials:
        figure = figure_of(trial, is_memory=is_memory)
        if figure and math.isfinite(figure):
            logs[trial.plan].append(math.log(figure))
            own[trial.plan].append(0.0 if is_memory else _own_variance(trial))
    between = _process_variance(logs.values())
    return [
        SeenPlan(
            plan,
            statistics.fmean(found),
            (between + statistics.fmean(own[plan])) / len(found),
            plan in flips,
        )
        for plan, found in logs.items()
    ]


def _own_variance(trial: TrialRecord) -> float:
    """Return the variance of a trial's log throughput by its windows and by stopping early."""
    assert trial.result is not None
    measured = trial.result.measurement
    assert measured is not None
    raced = _RACED_STD**2 if measured.raced else 0.0
    low, high = measured.throughput_low, measured.throughput_high
    if not (0 < low <= high < math.inf):
        return raced
    return float(raced + (measured.log_half_width / SURE) ** 2)


def _process_variance(repeats: Iterable[Sequence[float]]) -> float:
    """Return the variance between processes of one plan, from those that ran several times."""
    again = [found for found in repeats if len(found) > 1]
    squares = sum(statistics.variance(found) * (len(found) - 1) for found in again)
    degrees = sum(len(found) - 1 for found in again)
    return (squares + _PROCESS_DEGREES * _PROCESS_STD**2) / (degrees + _PROCESS_DEGREES)


def estimate(
    seen: Sequence[SeenPlan],
    baseline: Plan,
    settings: Sequence[Setting],
    total: tuple[float, float],
) -> Effects:
    """Return the posterior effects of the settings, given the sum and its standard deviation.

    The means add up to the sum itself.
    """
    others = {
        setting
        for one in seen
        for setting in settings_of(one.plan, baseline)
        if setting not in settings
    }
    columns = [*settings, *sorted(others, key=str)]
    # The first column is the baseline's own figure, of which nothing is known beforehand.
    design = np.array([[1.0, *_has(one.plan, columns)] for one in seen])
    weights = 1 / np.array([one.variance + _misfit(one, baseline, settings) for one in seen])
    precision = np.diag([1e-6, *([_EFFECT_STD**-2] * len(columns))])
    covariance = np.linalg.inv(precision + design.T @ (weights[:, None] * design))
    logs = np.array([one.log for one in seen])
    mean = covariance @ design.T @ (weights * logs)
    # Where settings do not add up, all effects are less certain than the noise alone makes them.
    misfit = float(np.sum(weights * (logs - design @ mean) ** 2))
    covariance *= max(1.0, misfit / max(1, len(seen) - 1))
    chosen = np.array([0.0, *([1.0] * len(settings)), *([0.0] * len(others))])
    pull = covariance @ chosen / (chosen @ covariance @ chosen)
    mean = mean + pull * (total[0] - chosen @ mean)
    covariance = covariance - np.outer(pull, chosen @ covariance)
    covariance += np.outer(pull, pull) * total[1] ** 2
    own = slice(1, 1 + len(settings))
    return Effects([[n] for n in range(len(settings))], mean[own], covariance[own, own])


def _has(plan: Plan, settings: Iterable[Setting]) -> list[float]:
    return [float(plan.values.get(name) == value) for name, value in settings]


def _misfit(seen: SeenPlan, baseline: Plan, settings: Sequence[Setting]) -> float:
    """Return the variance of a plan's logarithm from the sum of its effects.

    The winner without one setting is what that setting's worth means, so it has none.
    """
    own = set(settings_of(seen.plan, baseline))
    to_winner = len(own ^ set(settings))
    if seen.is_flip or to_winner == 1:
        return 0.0
    return _MISFIT_STD**2 * min(len(own), to_winner)


def told_apart(effects: Effects, seen: Sequence[SeenPlan], settings: Sequence[Setting]) -> Effects:
    """Return the effects with those added up that no trial tells apart."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for number, setting in enumerate(settings):
        column = tuple(_has(one.plan, [setting])[0] for one in seen)
        groups[column].append(number)
    effects = effects.merged(list(groups.values()))
    while pair := _blurred(effects):
        rest = [[n] for n in range(len(effects.members)) if n not in pair]
        effects = effects.merged([*rest, list(pair)])
    return effects


def _blurred(effects: Effects) -> tuple[int, int] | None:
    """Return two uncertain effects whose sum is known better than either of them, or None."""
    numbers = range(len(effects.members))
    unsure = [n for n in numbers if not (effects.is_sure(n) and effects.is_known(n))]
    pairs = [(a, b) for a in unsure for b in unsure if a < b]

    def gained(pair: tuple[int, int]) -> float:
        variance = effects.covariance[np.ix_(pair, pair)]
        return float(min(np.diag(variance)) - variance.sum())

    best = max(pairs, key=gained, default=None)
    return best if best and gained(best) > 0 else None
