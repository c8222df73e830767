"""The sampler: Optuna's TPE over the conditional space, rebuilt from the history each time.

The study lives in memory only; the trials are kept in the store.
"""

import itertools
import math
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from autotune.agent.done import Done
from autotune.agent.history import History
from autotune.agent.proposal import Proposal
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import Domain
from autotune.trials.result import Outcome, Purpose

_MAX_STALE = 16  # samples in a row that are no new plan, after which sampling ends
_MAX_SAMPLES = 64  # most samples of one study; as running trials, each pushes the next ones away
_MAX_ENUMERATED = 2048  # most plans of a space whose untried plans are enumerated after sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Proposes plans by multivariate TPE on all search trials; failed ones count as infeasible.

    Attributes:
        seed: of the sampler; with the history it determines every proposal.
    """

    seed: int

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield new plans by expected improvement, then all untried plans of a small space."""
        seen: set[Plan] = set()
        for plan in itertools.chain(self._sampled(history), self._untried(history)):
            if plan not in history.tried and plan not in seen:
                seen.add(plan)
                num_seen = len(history.search)
                seen_so_far = "one trial" if num_seen == 1 else f"{num_seen} trials"
                reason = f"sampled from what {seen_so_far} showed"
                yield Proposal(plan=plan, purpose=Purpose.SAMPLER, reason=reason)

    def _sampled(self, history: History) -> Iterator[Plan]:
        axes = _axes(history)
        study = self._study(history, axes)
        known = set(history.tried)
        stale = 0
        for _ in range(_MAX_SAMPLES):
            plan = _sample(study.ask(), axes, history)
            # None: the sampled values exclude each other.
            stale = stale + 1 if plan is None or plan in known else 0
            if stale == _MAX_STALE:
                return
            if plan is not None:
                known.add(plan)
                yield plan

    def _study(self, history: History, axes: Mapping[str, "_Dimension"]) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # `group` has been marked experimental since Optuna 2.8; conditional knobs need it.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            tpe = optuna.samplers.TPESampler(
                seed=self.seed + len(history.done) + len(history.pending),
                multivariate=True,
                group=True,
                n_startup_trials=5,
            )
        study = optuna.create_study(direction="maximize", sampler=tpe)
        finished = [t for t in history.search if t.result.outcome.is_about_plan]
        study.add_trials([_finished_trial(trial, axes, history) for trial in finished])
        study.add_trials([_running_trial(plan, axes) for plan in history.pending])
        return study

    def _untried(self, history: History) -> Iterator[Plan]:
        if history.space.size_bound() > _MAX_ENUMERATED:
            return
        plans = [plan for plan in history.space.enumerate() if plan not in history.tried]
        random.Random(self.seed).shuffle(plans)  # noqa: S311 - no secret, any order will do
        yield from plans


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A knob as Optuna sees it: a count by its position in increasing order, others by value."""

    domain: Domain
    values: tuple[Value, ...]
    ordered: bool

    @property
    def distribution(self) -> BaseDistribution:
        if self.ordered:
            return IntDistribution(0, len(self.values) - 1)
        return CategoricalDistribution(self.values)

    def encode(self, value: Value) -> Value:
        return self.values.index(value) if self.ordered else value

    def suggest(self, trial: optuna.Trial) -> Value:
        name = self.domain.knob.name
        if len(self.values) == 1:
            return self.values[0]
        if self.ordered:
            return self.values[trial.suggest_int(name, 0, len(self.values) - 1)]
        choice = trial.suggest_categorical(name, self.values)
        assert choice is not None  # no knob has None among its values
        return choice


def _axes(history: History) -> dict[str, _Dimension]:
    free = [d for d in history.space.domains if d.knob.name != FOLLOWS]
    short = _is_short_of_memory(history)
    return {
        domain.knob.name: _axis(domain, history, varies=short or not domain.knob.memory.makes_room)
        for domain in free
    }


def _is_short_of_memory(history: History) -> bool:
    """Whether memory counts for the objective, or a batch twice as large may not fit.

    Elsewhere what makes room only costs speed.
    """
    if history.objective.weighs_memory:
        return True
    ran_out = any(trial.result.outcome is Outcome.OOM for trial in history.search)
    peaks = [t.result.measurement.memory_bytes for t in history.search if t.result.measurement]
    return ran_out or 2 * max((peak or 0 for peak in peaks), default=0) > history.memory_cap_bytes


def _axis(domain: Domain, history: History, *, varies: bool) -> _Dimension:
    values = domain.values if varies else domain.values[:1]
    if domain.varies:
        values = (*values, *_values_outside(values, domain, history))
    ordered = domain.knob.any_count and len(values) > 1
    return _Dimension(domain, tuple(sorted(values, key=int)) if ordered else values, ordered)


def _values_outside(
    values: tuple[Value, ...], domain: Domain, history: History
) -> Iterable[Value]:
    """Return the knob's values in plans of the history that are not among those to sample.

    One is the batch of a baseline that was halved until it ran.
    """
    name = domain.knob.name
    plans = [*(t.plan for t in history.search), *history.pending]
    used = [p[name] for p in plans if name in p and p[name] not in values]
    return dict.fromkeys(used)


def _sample(trial: optuna.Trial, axes: Mapping[str, _Dimension], history: History) -> Plan | None:
    chosen: dict[str, Value] = {}
    for name, axis in axes.items():
        if axis.domain.knob.active(Plan.of(chosen)):
            chosen[name] = axis.suggest(trial)
    return history.space.possible(chosen)


def _finished_trial(done: Done, axes: Mapping[str, _Dimension], history: History) -> FrozenTrial:
    measurement = done.result.measurement
    memory = measurement.memory_bytes if measurement else None
    worth = history.value(done) if done.is_measured else None
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE,
        # TPE never reads the value of an infeasible trial, but a complete one must have it.
        value=math.log(worth) if worth else 0.0,
        constraints={
            "runs": -1.0 if worth else 1.0,
            "memory": (memory or 0) / history.memory_cap_bytes - 1.0,
        },
        params=_params(done.plan, axes),
        distributions=_distributions(done.plan, axes),
    )


def _running_trial(plan: Plan, axes: Mapping[str, _Dimension]) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=TrialState.RUNNING,
        params=_params(plan, axes),
        distributions=_distributions(plan, axes),
    )


def _params(plan: Plan, axes: Mapping[str, _Dimension]) -> dict[str, Value]:
    return {name: axes[name].encode(plan[name]) for name in _free_knobs(plan, axes)}


def _distributions(plan: Plan, axes: Mapping[str, _Dimension]) -> dict[str, BaseDistribution]:
    return {name: axes[name].distribution for name in _free_knobs(plan, axes)}


def _free_knobs(plan: Plan, axes: Mapping[str, _Dimension]) -> list[str]:
    """Return the plan's knobs that have several values; Optuna is told only of these."""
    return [name for name, axis in axes.items() if name in plan and len(axis.values) > 1]
