"""How fast a plan will be: a Gaussian process whose prior mean is domain knowledge.

The log of the speed at which a plan computes is a Gaussian process over plans. Its prior mean is
what `roofline` expects. Its covariance is a sum of parts: one for the batch size, which grows
with each doubling; one for each knob, in proportion to its expected gain plus a constant, and
similar in plans where that gain is similar; and one for interactions of settings, similar in
plans where all gains are similar. The scale of each part is fitted to the measurements by
maximum a posteriori. Waiting for data is added afterwards, see `loading`. The formulas are the
standard ones of Gaussian process regression (Rasmussen & Williams 2006, algorithm 2.1).
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

# Prior standard deviation of a setting's log speed, as a part of its expected gain.
_DOUBT_ABOUT_GAIN = 0.5
_LENGTH_SCALE = 0.7  # length scale of the covariance over expected gains, in the log speed
_VALUE_CORRELATION = (
    0.7  # prior correlation between the constant doubts about two values of a knob
)
_INTERACTION_STD = 0.1  # prior standard deviation of the log speed by interactions of settings
# Standard deviation of a plan's log speed between processes, with its prior probability: on a
# quiet machine, on a busy one, and on one that other programs disturb.
_PROCESS_STD_PRIOR = {0.015: 0.9, 0.05: 0.08, 0.15: 0.02}
# Largest deviation between processes, as a multiple of the half width of the interval that the
# windows of one process give.
_MOST_STD_OVER_WINDOWS = 10.0
# Factors of the standard deviation of a part of the covariance, with their prior probability.
_FACTOR_PRIOR = {1.0: 0.7, 2.0: 0.2, 4.0: 0.1}
_LEAST_STD = 1e-3  # least standard deviation of a forecast log speed
_RACED_STD = 0.05  # further standard deviation of the log speed of a trial that was stopped early
_NORMAL = statistics.NormalDist()

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A forecast: mean and standard deviation of the log of a plan's throughput or value."""

    log_mean: float
    log_std: float

    @property
    def throughput(self) -> float:
        """The median of the expected samples per second."""
        return math.exp(self.log_mean)

    def gain(self, over: float) -> float:
        """Return the expected improvement of the log throughput over that of `over`."""
        z = (self.log_mean - math.log(over)) / self.log_std
        return self.log_std * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z))

    def chance(self, over: float) -> float:
        """Return the probability of a throughput above `over`."""
        return _NORMAL.cdf((self.log_mean - math.log(over)) / self.log_std)


@dataclass(frozen=True, slots=True)
class _Features:
    """The features of a plan that its covariance with others is computed from.

    Attributes:
        gains: expected gain over the baseline of the batch and of each knob, in the log speed.
        doubts: standard deviation of the log speed by each knob, whatever its gain.
        value_codes: a number for each knob's value, equal for equal values.
        batch_variance: variance of the log speed by the batch, see `Roofline.batch_variance`.
    """

    gains: Array
    doubts: Array
    value_codes: NDArray[np.int64]
    batch_variance: Array


@dataclass(frozen=True, slots=True)
class _Hyperparameters:
    """The hyperparameters that are fitted to the measurements.

    Attributes:
        process_std: standard deviation of a plan's log throughput between processes.
        factors: factor of the standard deviation of each part of the covariance: the batch, each
            knob, interactions.
    """

    process_std: float
    factors: Array


class Forecast:
    """Forecasts of the throughput of plans, given the measured trials.

    Args:
        history: with a baseline that ran.
        hardware: the machine that trials run on.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history = history
        self._baseline = history.baseline
        self._loading = loading_of(history)
        self._roofline = Roofline(history, hardware)
        self._code_of: dict[tuple[str, Value], int] = {}
        self._known_features: dict[Plan, _Features] = {}

    @property
    def process_std(self) -> float:
        """The fitted standard deviation of a plan's log throughput between processes."""
        return self._hyperparameters.process_std

    def of(self, plans: Sequence[Plan], beside: Plan | None = None) -> list[Outlook]:
        """Return the forecast of each plan.

        Args:
            plans: measured or not.
            beside: a plan to compare them with: `log_std` is then that of the difference to it.
                Similar plans share most of their uncertainty, which says nothing about which of
                them is faster. None: the standard deviation of each plan by itself.
        """
        if not plans:
            return []
        factors = self._hyperparameters.factors
        across = _weighted_sum(self._prior_covariance(plans, self._seen_plans), factors)
        mean = self._prior_mean(plans) + across @ self._weights
        variance = _weighted_sum(self._prior_variance(plans), factors)
        variance -= np.einsum("ij,jk,ik->i", across, self._inverse, across)
        if beside is not None:
            variance += self._extra_variance_of_difference(plans, across, beside)
        spread = np.sqrt(np.maximum(variance, 1e-6))
        return [
            self._outlook(plan, float(log), float(s))
            for plan, log, s in zip(plans, mean, spread, strict=True)
        ]

    def _extra_variance_of_difference(
        self, plans: Sequence[Plan], across: Array, beside: Plan
    ) -> Array:
        """Return the variance of each plan's difference to `beside`, less the plan's own."""
        factors = self._hyperparameters.factors
        seen = _weighted_sum(self._prior_covariance([beside], self._seen_plans), factors)
        own = (
            _weighted_sum(self._prior_variance([beside]), factors)[0]
            - (seen @ self._inverse @ seen.T)[0, 0]
        )
        shared = _weighted_sum(self._prior_covariance(plans, [beside]), factors)
        shared -= across @ self._inverse @ seen.T
        return np.asarray(own - 2 * shared[:, 0], dtype=np.float64)

    def _outlook(self, plan: Plan, log: float, spread: float) -> Outlook:
        """Return the forecast with the time of waiting for data added to that of computing."""
        computing_s, doubt = math.exp(-log), self._loading.doubt(plan)

        def step_s(computing: float, loading: float) -> float:
            return self._loading.step_s(plan, computing_s * math.exp(computing), math.exp(loading))

        by_computing = math.log(step_s(spread, 0.0) / step_s(-spread, 0.0)) / 2
        by_loading = math.log(step_s(0.0, doubt) / step_s(0.0, -doubt)) / 2
        deviation = max(_LEAST_STD, math.hypot(by_computing, by_loading))
        return Outlook(log_mean=-math.log(step_s(0.0, 0.0)), log_std=deviation)

    @cached_property
    def _trials(self) -> list[Done]:
        """The measured trials."""
        return [trial for trial in self._history.search if trial.is_measured]

    @property
    def _seen_plans(self) -> list[Plan]:
        return [*(trial.plan for trial in self._trials), *self._history.pending]

    @cached_property
    def _hyperparameters(self) -> _Hyperparameters:
        """The most probable hyperparameters, given the measurements."""
        levels = [level for level in _PROCESS_STD_PRIOR if level <= self._most_process_std]
        fitted = map(self._fit_factors, levels or [min(_PROCESS_STD_PRIOR)])
        return max(fitted, key=self._log_probability)

    def _fit_factors(self, process_std: float) -> _Hyperparameters:
        """Return the hyperparameters with the best factors, for a given noise between processes.

        The search is greedy: it changes the factor that raises the probability most, until none
        does. So a residual is attributed to its likeliest part and not to all that a plan changed.
        """
        seen = np.diagonal(self._among_trials, axis1=1, axis2=2).max(axis=1)
        fit = found = _Hyperparameters(process_std, np.ones(len(seen)))
        best = -math.inf
        while (now := self._log_probability(found)) > best:
            fit, best = found, now
            others = (
                _Hyperparameters(process_std, _with_factor(fit.factors, int(part), factor))
                for part in np.flatnonzero(seen)
                for factor in _FACTOR_PRIOR
            )
            found = max(others, key=self._log_probability)
        return fit

    @property
    def _most_process_std(self) -> float:
        """The largest noise between processes to consider, as their windows vary, too."""
        measured = (trial.result.measurement for trial in self._trials)
        return _MOST_STD_OVER_WINDOWS * statistics.median(m.log_half_width for m in measured if m)

    def _log_probability(self, fit: _Hyperparameters) -> float:
        """Return the log of likelihood times prior of the hyperparameters, but for a constant."""
        covariance = self._measured_covariance(fit)
        misfit = self._residuals @ np.linalg.solve(covariance, self._residuals)
        likelihood = -float(misfit + np.linalg.slogdet(covariance).logabsdet) / 2
        chances = [_FACTOR_PRIOR[factor] for factor in fit.factors]
        return likelihood + sum(map(math.log, [_PROCESS_STD_PRIOR[fit.process_std], *chances]))

    def _measured_covariance(self, fit: _Hyperparameters) -> Array:
        return _weighted_sum(self._among_trials, fit.factors) + np.diag(self._noise(fit))

    def _noise(self, fit: _Hyperparameters) -> list[float]:
        """Return the variance of the noise in each trial."""
        measured = (trial.result.measurement for trial in self._trials)
        return [_deviation(m, fit.process_std) ** 2 for m in measured if m]

    @cached_property
    def _among_trials(self) -> Array:
        plans = [trial.plan for trial in self._trials]
        return self._prior_covariance(plans, plans)

    @cached_property
    def _inverse(self) -> Array:
        fit = self._hyperparameters
        to_come = [fit.process_std**2] * len(self._history.pending)
        among = self._prior_covariance(self._seen_plans, self._seen_plans)
        covariance = _weighted_sum(among, fit.factors) + np.diag(self._noise(fit) + to_come)
        return np.asarray(np.linalg.inv(covariance), dtype=np.float64)

    @cached_property
    def _weights(self) -> Array:
        """The weight of each seen plan in the posterior mean; 0 for running plans."""
        covariance = self._measured_covariance(self._hyperparameters)
        rest = np.zeros(len(self._history.pending))
        return np.concatenate([np.linalg.solve(covariance, self._residuals), rest])

    @cached_property
    def _residuals(self) -> Array:
        """Measured less expected log speed of each trial."""
        found = np.array([-math.log(compute_s(trial)) for trial in self._trials])
        return found - self._prior_mean([trial.plan for trial in self._trials])

    def _prior_mean(self, plans: Sequence[Plan]) -> Array:
        start = -math.log(compute_s(self._baseline))
        own = self._roofline.log_speed(self._baseline.plan)
        return np.array([start + self._roofline.log_speed(plan) - own for plan in plans])

    def _prior_variance(self, plans: Sequence[Plan]) -> Array:
        """Return the prior variance by part and plan."""
        views = self._stacked_features(plans)
        settings = (_DOUBT_ABOUT_GAIN * views.gains[:, 1:]) ** 2 + views.doubts**2
        together = np.full_like(views.batch_variance, _INTERACTION_STD**2)
        return np.stack([np.abs(views.batch_variance), *settings.T, together])

    def _prior_covariance(self, plans: Sequence[Plan], others: Sequence[Plan]) -> Array:
        """Return the prior covariance by part, plan and other plan."""
        here, there = self._stacked_features(plans), self._stacked_features(others)
        apart = ((here.gains[:, None] - there.gains[None, :]) / _LENGTH_SCALE) ** 2
        promised = _DOUBT_ABOUT_GAIN**2 * np.abs(here.gains[:, None] * there.gains[None, :])
        same = here.value_codes[:, None] == there.value_codes[None, :]
        doubted = (
            here.doubts[:, None] * there.doubts[None, :] * np.where(same, 1.0, _VALUE_CORRELATION)
        )
        settings = promised[..., 1:] * np.exp(-apart[..., 1:] / 2) + doubted
        ways = here.batch_variance[:, None], there.batch_variance[None, :]
        batch_variance = np.minimum(*map(np.abs, ways)) * (ways[0] * ways[1] > 0)
        together = _INTERACTION_STD**2 * np.exp(-apart.sum(axis=2) / 2)
        return np.stack([batch_variance, *np.moveaxis(settings, 2, 0), together])

    def _stacked_features(self, plans: Sequence[Plan]) -> _Features:
        """Return the features of the plans, stacked."""
        views = [self._features(plan) for plan in plans]
        return _Features(
            gains=np.array([view.gains for view in views]),
            doubts=np.array([view.doubts for view in views]),
            value_codes=np.array([view.value_codes for view in views]),
            batch_variance=np.array([view.batch_variance for view in views]),
        )

    def _features(self, plan: Plan) -> _Features:
        if plan not in self._known_features:
            gains, doubts = self._roofline.gains(plan), self._roofline.doubts(plan)
            self._known_features[plan] = _Features(
                gains=np.array([gains.get(n, 0.0) for n in ("batch_size", *self._knob_names)]),
                doubts=np.array([doubts.get(name, 0.0) for name in self._knob_names]),
                value_codes=np.array(self._value_codes(plan)),
                batch_variance=np.array(self._roofline.batch_variance(int(plan["batch_size"]))),
            )
        return self._known_features[plan]

    @cached_property
    def _knob_names(self) -> tuple[str, ...]:
        names = (domain.knob.name for domain in self._history.space.domains)
        return tuple(n for n in names if n not in FOLLOWS_BATCH)

    def _value_codes(self, plan: Plan) -> list[int]:
        """Return a number for each knob's value, equal for equal values."""
        settings = ((name, plan.get(name, "")) for name in self._knob_names)
        return [self._code_of.setdefault(setting, len(self._code_of)) for setting in settings]


def _with_factor(factors: Array, part: int, factor: float) -> Array:
    others = factors.copy()
    others[part] = factor
    return others


def _weighted_sum(parts: Array, factors: Array) -> Array:
    """Return the sum over the first axis, the parts of a covariance, each times its factor."""
    return np.asarray(np.tensordot(factors**2, parts, axes=1), dtype=np.float64)


def _deviation(measurement: Measurement, process_std: float) -> float:
    """Return the standard deviation of the measured log throughput about the plan's mean."""
    raced = _RACED_STD if measurement.raced else 0.0
    return math.hypot(process_std, measurement.log_half_width / 2, raced)
