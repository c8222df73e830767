"""How fast a plan will be, before it is measured: domain knowledge, corrected by evidence.

The logarithm of the speed at which a plan computes is a Gaussian process over plans. Its mean is
what `roofline` expects. Its covariance says how plans may deviate from that: by the way from
one batch to another; by each setting, in proportion to what it promises and a little in any case,
alike in all plans of which it promises the same; and by settings beside each other, alike in plans
that promise the same of everything. How far each of these goes is as stated, or more where that
explains what was measured. Waiting for data comes on top, see `loading`. The formulas are
the standard ones of Gaussian process regression (Rasmussen & Williams 2006, algorithm 2.1).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.agent.done import Done
from autotune.agent.forecast.loading import compute_s, loading_of
from autotune.agent.forecast.roofline import Roofline
from autotune.agent.history import History
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import FOLLOWS_BATCH
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Measurement

_DOUBT_ABOUT_GAIN = 0.5  # deviation of the log speed, as a part of what a setting promises
_LENGTH = 0.7  # between promises that are related, in the log speed
_RELATED = 0.7  # correlation of what is doubted of two values of a knob in any case
_TOGETHER = 0.1  # deviation of the log speed of settings beside each other
# By how much the log speed of a plan may vary between processes: on a quiet machine, on a busy one
# and on one that others disturb; and how many times as far as stated above each part may deviate.
# Each with its probability before anything was measured.
_BETWEEN_PROCESSES = {0.015: 0.9, 0.05: 0.08, 0.15: 0.02}
_WINDOWS_TO_PROCESSES = 10.0  # most of the former, over half the interval from windows
_FARTHER = {1.0: 0.7, 2.0: 0.2, 4.0: 0.1}
_LEAST_DEVIATION = 1e-3
_RACED = 0.05  # more, for a trial that was stopped early
_NORMAL = statistics.NormalDist()

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The logarithm of a plan's expected throughput, and its standard deviation."""

    log: float
    spread: float

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return math.exp(self.log)

    def gain(self, over: float) -> float:
        """Return the expected gain of the log throughput over `over`, were it taken if there."""
        z = (self.log - math.log(over)) / self.spread
        return self.spread * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z))

    def chance(self, over: float) -> float:
        """Return the probability of a throughput above `over`."""
        return _NORMAL.cdf((self.log - math.log(over)) / self.spread)


@dataclass(frozen=True, slots=True)
class _View:
    """What the covariance sees of a plan.

    Attributes:
        gains: what the batch, then each knob promises over the baseline, in the log speed.
        doubts: of each knob in any case.
        codes: a number for each knob's value, equal for equal values.
        walked: variance on the way to its batch, see `Roofline.distance`.
    """

    gains: Array
    doubts: Array
    codes: NDArray[np.int64]
    walked: Array


@dataclass(frozen=True, slots=True)
class _Fit:
    """How much may vary.

    Attributes:
        between_processes: the deviation of the log throughput between processes of a plan.
        farther: how many times as far as stated each part of the covariance may deviate: the way
            to the batch, each knob, settings beside each other.
    """

    between_processes: float
    farther: Array


class Forecast:
    """What a history says about plans that were not measured.

    Args:
        history: with a baseline that ran.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history = history
        self._baseline = history.baseline
        self._loading = loading_of(history)
        self._roofline = Roofline(history, hardware)
        self._numbers: dict[tuple[str, Value], int] = {}
        self._known_views: dict[Plan, _View] = {}

    @property
    def between_processes(self) -> float:
        """The deviation of the log throughput between processes of a plan."""
        return self._fitted.between_processes

    def of(self, plans: Sequence[Plan], beside: Plan | None = None) -> list[Outlook]:
        """Return the outlook of each plan.

        Args:
            plans: any.
            beside: a plan to compare them with: the spread is then that of the difference to it.
                What is not known of that plan is mostly not known of its neighbours either, and
                says nothing about which of them is faster. None: the spread of each by itself.
        """
        if not plans:
            return []
        farther = self._fitted.farther
        across = _summed(self._covariance(plans, self._seen), farther)
        mean = self._mean(plans) + across @ self._weights
        variance = _summed(self._variance(plans), farther)
        variance -= np.einsum("ij,jk,ik->i", across, self._inverse, across)
        if beside is not None:
            variance += self._difference(plans, across, beside)
        spread = np.sqrt(np.maximum(variance, 1e-6))
        return [
            self._outlook(plan, float(log), float(s))
            for plan, log, s in zip(plans, mean, spread, strict=True)
        ]

    def _difference(self, plans: Sequence[Plan], across: Array, beside: Plan) -> Array:
        """Return what the variance of the difference to a plan has more than that of the plans."""
        farther = self._fitted.farther
        seen = _summed(self._covariance([beside], self._seen), farther)
        own = _summed(self._variance([beside]), farther)[0] - (seen @ self._inverse @ seen.T)[0, 0]
        shared = _summed(self._covariance(plans, [beside]), farther)
        shared -= across @ self._inverse @ seen.T
        return np.asarray(own - 2 * shared[:, 0], dtype=np.float64)

    def _outlook(self, plan: Plan, log: float, spread: float) -> Outlook:
        """Add the waiting for data to the time of computing."""
        computing_s, doubt = math.exp(-log), self._loading.doubt(plan)

        def step_s(computing: float, loading: float) -> float:
            return self._loading.step_s(plan, computing_s * math.exp(computing), math.exp(loading))

        by_computing = math.log(step_s(spread, 0.0) / step_s(-spread, 0.0)) / 2
        by_loading = math.log(step_s(0.0, doubt) / step_s(0.0, -doubt)) / 2
        deviation = max(_LEAST_DEVIATION, math.hypot(by_computing, by_loading))
        return Outlook(log=-math.log(step_s(0.0, 0.0)), spread=deviation)

    @cached_property
    def _trials(self) -> list[Done]:
        """The measured trials."""
        return [trial for trial in self._history.search if trial.is_measured]

    @property
    def _seen(self) -> list[Plan]:
        return [*(trial.plan for trial in self._trials), *self._history.pending]

    @cached_property
    def _fitted(self) -> _Fit:
        """The most likely one, given what was measured."""
        levels = [level for level in _BETWEEN_PROCESSES if level <= self._most_noise]
        fitted = map(self._fitted_with, levels or [min(_BETWEEN_PROCESSES)])
        return max(fitted, key=self._log_probability)

    def _fitted_with(self, between_processes: float) -> _Fit:
        """Change one part after the other, each time the one that explains most by it.

        So a surprise is laid at the door of what it is likely to come from, and not of everything
        that the plan changed beside it.
        """
        seen = np.diagonal(self._among_trials, axis1=1, axis2=2).max(axis=1)
        fit = found = _Fit(between_processes, np.ones(len(seen)))
        reached = -math.inf
        while (now := self._log_probability(found)) > reached:
            fit, reached = found, now
            others = (
                _Fit(between_processes, _replaced(fit.farther, int(part), factor))
                for part in np.flatnonzero(seen)
                for factor in _FARTHER
            )
            found = max(others, key=self._log_probability)
        return fit

    @property
    def _most_noise(self) -> float:
        """What disturbs processes shows in their windows, too."""
        measured = (trial.result.measurement for trial in self._trials)
        return _WINDOWS_TO_PROCESSES * statistics.median(m.log_half_width for m in measured if m)

    def _log_probability(self, fit: _Fit) -> float:
        covariance = self._measured_covariance(fit)
        misfit = self._surprise @ np.linalg.solve(covariance, self._surprise)
        likelihood = -float(misfit + np.linalg.slogdet(covariance).logabsdet) / 2
        chances = [_FARTHER[factor] for factor in fit.farther]
        return likelihood + sum(
            map(math.log, [_BETWEEN_PROCESSES[fit.between_processes], *chances])
        )

    def _measured_covariance(self, fit: _Fit) -> Array:
        return _summed(self._among_trials, fit.farther) + np.diag(self._noise(fit))

    def _noise(self, fit: _Fit) -> list[float]:
        """Return the variance of the noise in each trial."""
        measured = (trial.result.measurement for trial in self._trials)
        return [deviation(m, fit.between_processes) ** 2 for m in measured if m]

    @cached_property
    def _among_trials(self) -> Array:
        plans = [trial.plan for trial in self._trials]
        return self._covariance(plans, plans)

    @cached_property
    def _inverse(self) -> Array:
        fit = self._fitted
        to_come = [fit.between_processes**2] * len(self._history.pending)
        among = self._covariance(self._seen, self._seen)
        covariance = _summed(among, fit.farther) + np.diag(self._noise(fit) + to_come)
        return np.asarray(np.linalg.inv(covariance), dtype=np.float64)

    @cached_property
    def _weights(self) -> Array:
        """What running plans will give is not known: they are taken to be as expected."""
        covariance = self._measured_covariance(self._fitted)
        rest = np.zeros(len(self._history.pending))
        return np.concatenate([np.linalg.solve(covariance, self._surprise), rest])

    @cached_property
    def _surprise(self) -> Array:
        """By how much the logarithms of the measured speeds are off what was expected."""
        found = np.array([-math.log(compute_s(trial)) for trial in self._trials])
        return found - self._mean([trial.plan for trial in self._trials])

    def _mean(self, plans: Sequence[Plan]) -> Array:
        start = -math.log(compute_s(self._baseline))
        own = self._roofline.log_speed(self._baseline.plan)
        return np.array([start + self._roofline.log_speed(plan) - own for plan in plans])

    def _variance(self, plans: Sequence[Plan]) -> Array:
        """Return it by part and plan."""
        views = self._views(plans)
        settings = (_DOUBT_ABOUT_GAIN * views.gains[:, 1:]) ** 2 + views.doubts**2
        together = np.full_like(views.walked, _TOGETHER**2)
        return np.stack([np.abs(views.walked), *settings.T, together])

    def _covariance(self, plans: Sequence[Plan], others: Sequence[Plan]) -> Array:
        """Return it by part, plan and other plan."""
        here, there = self._views(plans), self._views(others)
        apart = ((here.gains[:, None] - there.gains[None, :]) / _LENGTH) ** 2
        promised = _DOUBT_ABOUT_GAIN**2 * np.abs(here.gains[:, None] * there.gains[None, :])
        same = here.codes[:, None] == there.codes[None, :]
        doubted = here.doubts[:, None] * there.doubts[None, :] * np.where(same, 1.0, _RELATED)
        settings = promised[..., 1:] * np.exp(-apart[..., 1:] / 2) + doubted
        ways = here.walked[:, None], there.walked[None, :]
        walked = np.minimum(*map(np.abs, ways)) * (ways[0] * ways[1] > 0)
        together = _TOGETHER**2 * np.exp(-apart.sum(axis=2) / 2)
        return np.stack([walked, *np.moveaxis(settings, 2, 0), together])

    def _views(self, plans: Sequence[Plan]) -> _View:
        """Return the views of the plans, stacked."""
        views = [self._view(plan) for plan in plans]
        return _View(
            gains=np.array([view.gains for view in views]),
            doubts=np.array([view.doubts for view in views]),
            codes=np.array([view.codes for view in views]),
            walked=np.array([view.walked for view in views]),
        )

    def _view(self, plan: Plan) -> _View:
        if plan not in self._known_views:
            gains, doubts = self._roofline.gains(plan), self._roofline.doubts(plan)
            self._known_views[plan] = _View(
                gains=np.array([gains.get(n, 0.0) for n in ("batch_size", *self._names)]),
                doubts=np.array([doubts.get(name, 0.0) for name in self._names]),
                codes=np.array(self._codes(plan)),
                walked=np.array(self._roofline.distance(int(plan["batch_size"]))),
            )
        return self._known_views[plan]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = (domain.knob.name for domain in self._history.space.domains)
        return tuple(n for n in names if n not in FOLLOWS_BATCH)

    def _codes(self, plan: Plan) -> list[int]:
        """A number for each knob's value, equal for equal values."""
        settings = ((name, plan.get(name, "")) for name in self._names)
        return [self._numbers.setdefault(setting, len(self._numbers)) for setting in settings]


def _replaced(factors: Array, part: int, factor: float) -> Array:
    others = factors.copy()
    others[part] = factor
    return others


def _summed(parts: Array, farther: Array) -> Array:
    """Return the sum of the parts of a covariance, the first axis."""
    return np.asarray(np.tensordot(farther**2, parts, axes=1), dtype=np.float64)


def deviation(measurement: Measurement, between_processes: float) -> float:
    """Return how far a process may be off its plan's level, as a deviation of the logarithm."""
    raced = _RACED if measurement.raced else 0.0
    return math.hypot(between_processes, measurement.log_half_width / 2, raced)
