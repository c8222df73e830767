"""Why a winner is faster than the baseline: what each of its settings is worth.

The logarithm of what was measured is modelled as a sum of an effect for each setting, a Bayesian
linear regression over all measured plans of the run (Gelman et al., Bayesian Data Analysis,
chapter 14). Plans that differ little from the baseline or from the winner weigh most, such as the
winner without one of its settings, as effects of settings do not add up exactly far away from
both. The effects are then made to multiply to the winner's speed-up.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.agent.objectives.objective import ObjectiveName
from autotune.report.verdict import MOST_SPREAD
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, Value
from autotune.storage.records import NOT_SEARCHED, RunRecord, TrialRecord, Winner

# Prior standard deviation of a setting's effect, in the logarithm: a factor of 1.6 either way.
_EFFECT_STD = 0.5
# Standard deviation of a plan's log throughput between processes (0.2 to 3 % were measured on
# several machines), and the degrees of freedom that this prior counts for.
_PROCESS_STD, _PROCESS_DEGREES = 0.02, 2
_RACED_STD = 0.05  # further standard deviation of a trial that was stopped early
# Standard deviation of a plan's log throughput from the sum of its effects, for each setting by
# which it differs from the baseline or from the winner, whichever is nearer.
_MISFIT_STD = 0.05
_SURE = 1.96  # standard deviations on each side of a 95 % interval

Array = NDArray[np.float64]
Setting = tuple[str, Value]
"""A knob and the winner's value of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one setting of the winner is worth, or several that were not measured apart.

    Attributes:
        settings: the knobs with the winner's values.
        factor: the ratio of the winner's figure to the one without these settings.
        low, high: its 95 % interval; None where it is not known: the winner was measured once, or
            the interval is wider than tenfold.
        is_noise: none of these settings is known to change anything, as the interval of each holds
            1; that of all together need not.
        trial: the number of the first trial on the path that had these settings.
    """

    settings: Mapping[str, Value]
    factor: float
    low: float | None
    high: float | None
    is_noise: bool
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A measured trial on the way from the baseline to the winner.

    Attributes:
        trial: its number.
        figure: its samples per second, or its peak in bytes.
        added: the winner's settings that it has and the stop before it had not.
    """

    trial: int
    figure: float
    added: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The way from the baseline to the winner as factors, which multiply to `factor`.

    Attributes:
        is_memory: the figures are peaks in bytes, as the objective is memory; otherwise they are
            samples per second.
        baseline: the figure of the baseline.
        winner: that of the winner.
        shares: in the order in which the path adds their settings; settings within noise are one
            share, the last one.
        path: measured trials from the baseline to the winner, each with some more of the winner's
            settings and no other change.
    """

    is_memory: bool
    baseline: float
    winner: float
    shares: tuple[Share, ...]
    path: tuple[Stop, ...]

    @property
    def factor(self) -> float:
        """The ratio of the winner's figure to the baseline's."""
        return self.winner / self.baseline


@dataclass(frozen=True, slots=True)
class _Seen:
    """All measurements of one plan: their mean logarithm and its variance."""

    plan: Plan
    log: float
    variance: float


@dataclass(frozen=True, slots=True)
class _Effects:
    """Effects of the winner's settings in the logarithm: means and covariance.

    Attributes:
        members: for each effect the settings it belongs to, as positions.
    """

    members: list[list[int]]
    mean: Array
    covariance: Array

    def half_width(self, number: int) -> float:
        """Return half of the effect's 95 % interval."""
        return _SURE * math.sqrt(max(0.0, float(self.covariance[number, number])))

    def is_sure(self, number: int) -> bool:
        """Whether the effect's interval holds no 0."""
        return abs(float(self.mean[number])) > self.half_width(number)

    def merged(self, groups: Sequence[Sequence[int]]) -> "_Effects":
        """Return the effects with each group's added up."""
        sums = np.zeros((len(groups), len(self.members)))
        for row, group in enumerate(groups):
            sums[row, list(group)] = 1.0
        return _Effects(
            [[m for number in group for m in self.members[number]] for group in groups],
            sums @ self.mean,
            sums @ self.covariance @ sums.T,
        )


def why_of(run: RunRecord, trials: Sequence[TrialRecord]) -> Why | None:
    """Return why the run's winner is better, None where it has none or kept the baseline.

    Args:
        run: with its winner.
        trials: all of its trials.
    """
    winner = run.winner
    if winner is None or winner.kept_baseline:
        return None
    is_memory = run.new.objective["name"] == ObjectiveName.MEMORY.value
    baseline = _baseline(run, trials)
    figures = _figures(run, is_memory=is_memory)
    settings = _settings(winner.plan, baseline)
    measured = _measured(run, trials)
    is_whole = {baseline, winner.plan} <= {trial.plan for trial in measured}
    if figures is None or not settings or not is_whole:
        return None
    path = _path(measured, baseline, settings, is_memory=is_memory)
    seen = _seen(measured, is_memory=is_memory)
    total = math.log(figures[1] / figures[0]), _total_std(winner, seen)
    effects = _estimate(seen, baseline, settings, total)
    return Why(
        is_memory=is_memory,
        baseline=figures[0],
        winner=figures[1],
        shares=_shares(
            _told_apart(effects, seen, settings), settings, path, is_confirmed=winner.confirmed
        ),
        path=path,
    )


def _figures(run: RunRecord, *, is_memory: bool) -> tuple[float, float] | None:
    """Return the figures of baseline and winner as the run concluded them."""
    assert run.winner is not None
    own, theirs = run.winner.own, run.winner.baseline
    before = theirs.memory_bytes if is_memory else theirs.throughput
    after = own.memory_bytes if is_memory else own.throughput
    if not is_memory and run.winner.speedup and after:
        before = after / run.winner.speedup.ratio
    return (before, after) if before and after else None


def _total_std(winner: Winner, seen: Sequence[_Seen]) -> float:
    """Return the standard deviation of the logarithm of the winner's speed-up."""
    known = winner.speedup
    if known and known.low and known.high:
        return math.log(known.high / known.low) / 2 / _SURE
    return math.sqrt(2 * max(one.variance for one in seen))


def _baseline(run: RunRecord, trials: Iterable[TrialRecord]) -> Plan:
    """Return the baseline that was measured; its batch is smaller if the user's did not fit."""
    plans = (t.plan for t in _measured(run, trials) if t.purpose.value == "baseline")
    return next(plans, run.new.baseline)


def _measured(run: RunRecord, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the measured trials on as many ranks as the winner has."""
    return [
        trial
        for trial in trials
        if trial.result is not None
        and trial.result.measurement is not None
        and trial.num_ranks == run.new.num_ranks
        and trial.purpose not in NOT_SEARCHED
    ]


def _settings(winner: Plan, baseline: Plan) -> list[Setting]:
    """Return what the winner sets; accumulation follows from the batch and is left out."""
    return [
        (name, value)
        for name, value in winner.items
        if baseline.values.get(name) != value and name != FOLLOWS
    ]


def _figure(trial: TrialRecord, *, is_memory: bool) -> float | None:
    assert trial.result is not None
    measured = trial.result.measurement
    assert measured is not None
    return measured.memory_bytes if is_memory else measured.throughput


def _seen(trials: Iterable[TrialRecord], *, is_memory: bool) -> list[_Seen]:
    """Return each plan with the mean of its measurements and the variance of that mean."""
    logs: dict[Plan, list[float]] = defaultdict(list)
    own: dict[Plan, list[float]] = defaultdict(list)
    for trial in trials:
        figure = _figure(trial, is_memory=is_memory)
        if figure and math.isfinite(figure):
            logs[trial.plan].append(math.log(figure))
            own[trial.plan].append(0.0 if is_memory else _own_variance(trial))
    between = _process_variance(logs.values())
    return [
        _Seen(
            plan,
            statistics.fmean(found),
            (between + statistics.fmean(own[plan])) / len(found),
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
    return float(raced + (measured.log_half_width / _SURE) ** 2)


def _process_variance(repeats: Iterable[Sequence[float]]) -> float:
    """Return the variance between processes of one plan, from those that ran several times."""
    again = [found for found in repeats if len(found) > 1]
    squares = sum(statistics.variance(found) * (len(found) - 1) for found in again)
    degrees = sum(len(found) - 1 for found in again)
    return (squares + _PROCESS_DEGREES * _PROCESS_STD**2) / (degrees + _PROCESS_DEGREES)


def _estimate(
    seen: Sequence[_Seen],
    baseline: Plan,
    settings: Sequence[Setting],
    total: tuple[float, float],
) -> _Effects:
    """Return the posterior effects of the settings, given the sum and its standard deviation.

    The means add up to the sum itself.
    """
    others = {
        setting
        for one in seen
        for setting in _settings(one.plan, baseline)
        if setting not in settings
    }
    columns = [*settings, *sorted(others, key=str)]
    # The first column is the baseline's own figure, of which nothing is known beforehand.
    design = np.array([[1.0, *_has(one.plan, columns)] for one in seen])
    weights = 1 / np.array([one.variance + _misfit(one.plan, baseline, settings) for one in seen])
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
    return _Effects([[n] for n in range(len(settings))], mean[own], covariance[own, own])


def _has(plan: Plan, settings: Iterable[Setting]) -> list[float]:
    return [float(plan.values.get(name) == value) for name, value in settings]


def _misfit(plan: Plan, baseline: Plan, settings: Sequence[Setting]) -> float:
    """Return the variance of a plan's logarithm from the sum of its effects."""
    own = set(_settings(plan, baseline))
    return _MISFIT_STD**2 * min(len(own), len(own ^ set(settings)))


def _told_apart(effects: _Effects, seen: Sequence[_Seen], settings: Sequence[Setting]) -> _Effects:
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


def _blurred(effects: _Effects) -> tuple[int, int] | None:
    """Return two uncertain effects whose sum is known better than either of them, or None."""
    unsure = [n for n in range(len(effects.members)) if not effects.is_sure(n)]
    pairs = [(a, b) for a in unsure for b in unsure if a < b]

    def gained(pair: tuple[int, int]) -> float:
        variance = effects.covariance[np.ix_(pair, pair)]
        return float(min(np.diag(variance)) - variance.sum())

    best = max(pairs, key=gained, default=None)
    return best if best and gained(best) > 0 else None


def _shares(
    effects: _Effects, settings: Sequence[Setting], path: Sequence[Stop], *, is_confirmed: bool
) -> tuple[Share, ...]:
    numbers = range(len(effects.members))
    sure = [[number] for number in numbers if effects.is_sure(number)]
    noise = [number for number in numbers if not effects.is_sure(number)]
    folded = effects.merged([*sure, *([noise] if noise else [])])
    found = [
        _share(
            folded, number, settings, path, is_confirmed=is_confirmed, is_noise=number >= len(sure)
        )
        for number in range(len(folded.members))
    ]
    return tuple(sorted(found, key=lambda s: (s.is_noise, s.trial, -abs(math.log(s.factor)))))


def _share(
    effects: _Effects,
    number: int,
    settings: Sequence[Setting],
    path: Sequence[Stop],
    *,
    is_confirmed: bool,
    is_noise: bool,
) -> Share:
    own = dict(settings[member] for member in sorted(effects.members[number]))
    mean, half = float(effects.mean[number]), effects.half_width(number)
    is_known = is_confirmed and 2 * half <= math.log(MOST_SPREAD)
    return Share(
        settings=own,
        factor=math.exp(mean),
        low=math.exp(mean - half) if is_known else None,
        high=math.exp(mean + half) if is_known else None,
        is_noise=is_noise,
        trial=next(s.trial for at, s in enumerate(path) if own.keys() <= _until(path, at)),
    )


def _until(path: Sequence[Stop], position: int) -> set[str]:
    """Return the knobs that the path has set at a stop."""
    return {name for stop in path[: position + 1] for name in stop.added}


def _path(
    trials: Sequence[TrialRecord],
    baseline: Plan,
    settings: Sequence[Setting],
    *,
    is_memory: bool,
) -> tuple[Stop, ...]:
    """Return the longest chain of trials that adds the winner's settings and changes no other."""
    first: dict[frozenset[Setting], TrialRecord] = {}
    for trial in trials:
        own = frozenset(_settings(trial.plan, baseline))
        if own <= set(settings) and _figure(trial, is_memory=is_memory):
            first.setdefault(own, trial)
    best: dict[frozenset[Setting], list[frozenset[Setting]]] = {}
    for own in sorted(first, key=len):
        before = max((best[less] for less in best if less < own), key=len, default=[])
        best[own] = [*before, own]
    chain = best.get(frozenset(settings), [])
    stops: list[Stop] = []
    had: frozenset[Setting] = frozenset()
    for own in chain:
        figure = _figure(first[own], is_memory=is_memory)
        assert figure is not None
        added = dict(sorted(own - had))
        stops.append(Stop(trial=first[own].number, figure=figure, added=added))
        had = own
    return tuple(stops)
