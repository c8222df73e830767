"""The best plans of earlier runs of a workload on this machine, which a new run measures first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.history import History
from autotune.agent.objectives.stored import objective_from
from autotune.agent.proposal import Proposal
from autotune.agent.startup import MeasuredPlan
from autotune.errors import PlanError
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.store import TrialStore
from autotune.trials.result import Purpose

_MAX_EARLIER_RUNS = (
    3  # earlier runs whose best plan is measured again, newest first; each costs a trial
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierBest:
    """The best plan of an earlier run.

    Attributes:
        run_name: name of the earlier run.
        how_alike: what that run has in common with this one, in words.
    """

    plan: Plan
    run_name: str
    how_alike: str


def found_earlier(store: TrialStore, run: RunRecord) -> tuple[EarlierBest, ...]:
    """Return the best plans of earlier runs, newest run first, each plan once.

    A run counts when it tuned the same file, or an earlier version of it, with as many devices in
    each trial, on an equal machine with equal versions. Runs that minimise memory do not start
    from runs that maximise speed, nor the other way round.
    """
    minimizes_memory = _minimizes_memory(run)
    found: dict[Plan, EarlierBest] = {}
    for other in store.runs():
        how_alike = (
            _how_alike(other, run) if _minimizes_memory(other) is minimizes_memory else None
        )
        plan = how_alike and _best(other, store)
        if how_alike and plan:
            found.setdefault(
                plan, EarlierBest(plan=plan, run_name=other.name, how_alike=how_alike)
            )
        if len(found) == _MAX_EARLIER_RUNS:
            break
    return tuple(found.values())


def compiled_earlier(store: TrialStore, run: RunRecord) -> tuple[MeasuredPlan, ...]:
    """Return measurements of earlier runs whose kernels the compiler's cache may still hold."""
    return tuple(
        (trial.plan, trial.result.measurement)
        for other in store.runs()
        if _how_alike(other, run)
        for trial in store.trials(other.id)
        if _is_comparable(trial, run) and trial.result and trial.result.measurement
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfEarlierRuns:
    """Proposes the best plans of earlier runs, before anything else is tried.

    They are measured again, as the workload or the machine may have changed since.
    """

    found: Sequence[EarlierBest]

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the plans that this run's space allows."""
        for one in self.found:
            plan = _plan_in_space(one.plan, history)
            if plan is not None:
                reason = f"the best plan of {one.run_name}, which tuned {one.how_alike}"
                yield Proposal(plan=plan, purpose=Purpose.PRESET, reason=reason)


def _how_alike(other: RunRecord, run: RunRecord) -> str | None:
    if other.id == run.id or other.new.num_ranks != run.new.num_ranks:
        return None
    if _machine(other) != _machine(run):
        return None
    if other.new.workload_hash == run.new.workload_hash:
        return "the same workload on this machine"
    same_place = other.new.workload_path == run.new.workload_path
    return "an earlier version of the file on this machine" if same_place else None


def _minimizes_memory(run: RunRecord) -> bool:
    return objective_from(run.new.objective).weighs_memory


def _machine(run: RunRecord) -> str:
    return Hardware.from_dict(run.new.hardware).fingerprint


def _best(run: RunRecord, store: TrialStore) -> Plan | None:
    """Return the winner of a run, or its fastest plan if the run ended before it had a winner.

    None: the baseline was the best one.
    """
    if run.winner is not None:
        return None if run.winner.kept_baseline else run.winner.plan
    measured = [t for t in store.trials(run.id) if _throughput(t) > 0]
    fastest = max((t for t in measured if _is_comparable(t, run)), key=_throughput, default=None)
    return None if fastest is None or fastest.plan == run.new.baseline else fastest.plan


def _is_comparable(trial: TrialRecord, run: RunRecord) -> bool:
    return trial.num_ranks == run.new.num_ranks


def _throughput(trial: TrialRecord) -> float:
    measurement = trial.result.measurement if trial.result else None
    return measurement.throughput if measurement else 0.0


def _plan_in_space(plan: Plan, history: History) -> Plan | None:
    try:
        return history.space.adopt(plan)
    except PlanError:  # a space of recorded plans may lack it
        return None
