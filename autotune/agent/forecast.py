"""How fast a plan will be, before it is measured: domain knowledge, corrected by evidence.

The logarithm of the speed at which a plan computes is a Gaussian process over plans. Its mean is
what `levers` expects of each setting. Its covariance says how settings may deviate from that: each
by itself, the same in all plans that have it (the first part), and any of them beside certain
others (the second). Waiting for data comes on top, see `loading`. The formulas are the standard
ones of Gaussian process regression (Rasmussen & Williams 2006, algorithm 2.1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.agent.history import FOLLOWS_BATCH, Done, History
from autotune.agent.levers import Expectation, expectation
from autotune.agent.loading import compute_s, loading_of
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import FOLLOWS

_RELATED = 0.85  # correlation of two values of a knob, in how they deviate from what is expected
_PER_DOUBLING = 0.2  # deviation of the log speed with each doubling of the batch
_TOGETHER = 0.1  # deviation of the log speed of settings beside each other
_ALIKE, _ALIKE_BATCH = 0.8, 0.9  # of that, shared with a plan one setting, one doubling away
# By how much the log speed of a plan may vary between processes: on a quiet machine, on a busy one
# and on one that others disturb, each with its probability before anything was measured.
_BETWEEN_PROCESSES = {0.015: 0.9, 0.05: 0.08, 0.15: 0.02}
_RACED = 0.05  # more, for a trial that was stopped early
_UNKNOWN_LOADER = 0.25  # deviation of the log waiting time with workers not measured yet
_OVERHEAD_MS = {"cuda": 6.0, "cpu": 3.0}  # of a step, whatever the batch
_MOST_OVERHEAD = 0.8  # share of a step
_LEAST_OF_OWN_BATCH = 0.1  # the batch of half the top speed, over the user's own

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
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return self.spread * (z * _normal(z) + density)

    def chance(self, over: float) -> float:
        """Return the probability of a throughput above `over`."""
        return _normal((self.log - math.log(over)) / self.spread)


class Forecast:
    """What a history says about plans that were not measured.

    Args:
        history: with a baseline that ran.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history, self._hardware = history, hardware
        self._baseline = history.baseline
        self._loading = loading_of(history)
        self._expected: dict[tuple[str, Value], Expectation] = {}
        self._numbers: dict[tuple[str, Value], int] = {}
        self._rows: dict[Plan, tuple[list[int], Array]] = {}
        self._half_batch = _half_batch(history, hardware)

    def of(self, plans: Sequence[Plan]) -> list[Outlook]:
        """Return the outlook of each plan."""
        if not plans:
            return []
        across = self._covariance(plans, self._seen)
        mean = self._mean(plans) + across @ self._weights
        explained = np.einsum("ij,jk,ik->i", across, self._inverse, across)
        spread = np.sqrt(np.maximum(self._variance(plans) - explained, 1e-6))
        return [
            self._outlook(plan, float(log), float(s))
            for plan, log, s in zip(plans, mean, spread, strict=True)
        ]

    def _outlook(self, plan: Plan, log: float, spread: float) -> Outlook:
        """Add the waiting for data to the time of computing."""
        computing_s = math.exp(-log)
        waiting_s = self._loading.wait_s(plan, computing_s)
        total_s = computing_s + waiting_s
        doubt = 0.0 if self._loading.is_known(plan) else _UNKNOWN_LOADER
        shares = spread * computing_s / total_s, doubt * waiting_s / total_s
        return Outlook(log=-math.log(total_s), spread=math.hypot(*shares))

    @cached_property
    def _trials(self) -> list[Done]:
        """The measured trials."""
        return [trial for trial in self._history.search if trial.throughput]

    @property
    def _seen(self) -> list[Plan]:
        return [*(trial.plan for trial in self._trials), *self._history.pending]

    @cached_property
    def _between_processes(self) -> float:
        """The deviation between processes that is most likely, given what was measured."""
        return max(_BETWEEN_PROCESSES, key=self._log_probability)

    def _log_probability(self, between_processes: float) -> float:
        covariance = self._measured_covariance(between_processes)
        misfit = self._surprise @ np.linalg.solve(covariance, self._surprise)
        likelihood = -float(misfit + np.linalg.slogdet(covariance).logabsdet) / 2
        return likelihood + math.log(_BETWEEN_PROCESSES[between_processes])

    def _measured_covariance(self, between_processes: float) -> Array:
        noise = [_noise(trial, between_processes) ** 2 for trial in self._trials]
        return self._among_trials + np.diag(noise)

    @cached_property
    def _among_trials(self) -> Array:
        plans = [trial.plan for trial in self._trials]
        return self._covariance(plans, plans)

    @cached_property
    def _inverse(self) -> Array:
        noise = [_noise(trial, self._between_processes) ** 2 for trial in self._trials]
        noise += [self._between_processes**2] * len(self._history.pending)
        covariance = self._covariance(self._seen, self._seen) + np.diag(noise)
        return np.asarray(np.linalg.inv(covariance), dtype=np.float64)

    @cached_property
    def _weights(self) -> Array:
        """What running plans will give is not known: they are taken to be as expected."""
        covariance = self._measured_covariance(self._between_processes)
        rest = np.zeros(len(self._history.pending))
        return np.concatenate([np.linalg.solve(covariance, self._surprise), rest])

    @cached_property
    def _surprise(self) -> Array:
        """By how much the logarithms of the measured speeds are off what was expected."""
        found = np.array([-math.log(compute_s(trial)) for trial in self._trials])
        return found - self._mean([trial.plan for trial in self._trials])

    def _mean(self, plans: Sequence[Plan]) -> Array:
        start = -math.log(compute_s(self._baseline))
        own = self._knowledge(self._baseline.plan)
        return np.array([start + self._knowledge(plan) - own for plan in plans])

    def _knowledge(self, plan: Plan) -> float:
        batch = int(plan["batch_size"])
        settings = sum(self._expectation(name, value).log for name, value in plan.items)
        return settings + math.log(batch / (batch + self._half_batch))

    def _expectation(self, name: str, value: Value) -> Expectation:
        if (name, value) not in self._expected:
            self._expected[name, value] = expectation(name, value, self._history, self._hardware)
        return self._expected[name, value]

    def _variance(self, plans: Sequence[Plan]) -> Array:
        settings = np.array([(self._row(plan)[1] ** 2).sum() for plan in plans])
        return settings + _PER_DOUBLING**2 * np.abs(self._doublings(plans)) + _TOGETHER**2

    def _covariance(self, plans: Sequence[Plan], others: Sequence[Plan]) -> Array:
        here, there = self._doublings(plans)[:, None], self._doublings(others)[None, :]
        shared = np.minimum(np.abs(here), np.abs(there)) * (here * there > 0)
        (codes, spreads), (their_codes, their_spreads) = map(self._table, (plans, others))
        same = codes[:, None, :] == their_codes[None, :, :]
        products = spreads[:, None, :] * their_spreads[None, :, :]
        settings = (products * np.where(same, 1.0, _RELATED)).sum(axis=2)
        alike = _ALIKE ** (~same).sum(axis=2) * _ALIKE_BATCH ** np.abs(here - there)
        covariance = _PER_DOUBLING**2 * shared + settings + _TOGETHER**2 * alike
        return np.asarray(covariance, dtype=np.float64)

    def _table(self, plans: Sequence[Plan]) -> tuple[NDArray[np.int64], Array]:
        """Return the codes and the spreads of the plans' settings, a row for each plan."""
        rows = [self._row(plan) for plan in plans]
        return np.array([codes for codes, _ in rows]), np.array([spreads for _, spreads in rows])

    def _row(self, plan: Plan) -> tuple[list[int], Array]:
        if plan not in self._rows:
            self._rows[plan] = self._codes(plan), self._spreads(plan)
        return self._rows[plan]

    def _doublings(self, plans: Sequence[Plan]) -> Array:
        own = int(self._baseline.plan["batch_size"])
        return np.array([math.log2(int(plan["batch_size"]) / own) for plan in plans])

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = (domain.knob.name for domain in self._history.space.domains)
        return tuple(n for n in names if n not in FOLLOWS_BATCH)

    def _codes(self, plan: Plan) -> list[int]:
        """A number for each knob's value, equal for equal values."""
        settings = ((name, plan.get(name, "")) for name in self._names)
        return [self._numbers.setdefault(setting, len(self._numbers)) for setting in settings]

    def _spreads(self, plan: Plan) -> Array:
        """How far each setting may be off; what the baseline has is no change, so not at all."""
        own = self._baseline.plan
        return np.array([
            self._expectation(name, plan[name]).spread
            if name in plan and plan[name] != own.get(name, "")
            else 0.0
            for name in self._names
        ])  # fmt: skip


def _half_batch(history: History, hardware: Hardware) -> float:
    """Return the batch at which half of the top speed is reached, from the best trial.

    A step is a fixed part, such as starting kernels, and one that grows with the batch. Their
    ratio is the batch sought. No step is without the first: larger batches fill a device better.
    """
    best = history.best
    assert best.result.measurement is not None
    micro_step_ms = best.result.measurement.step_ms / int(best.plan.get(FOLLOWS, 1))
    share = min(_OVERHEAD_MS[hardware.device_kind] / micro_step_ms, _MOST_OVERHEAD)
    least = _LEAST_OF_OWN_BATCH * int(history.space.baseline["batch_size"])
    return max(least, int(best.plan["batch_size"]) * share / (1.0 - share))


def _noise(trial: Done, between_processes: float) -> float:
    measurement = trial.result.measurement
    assert measurement is not None
    half = math.log(measurement.throughput_high / measurement.throughput_low) / 2
    return math.hypot(between_processes, half / 2, _RACED if measurement.raced else 0.0)


def _normal(z: float) -> float:
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0
