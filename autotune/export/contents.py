"""What a plan file holds: the plan, what it gave, against which baseline, on which machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import UsageError
from autotune.export.values import split_plan
from autotune.search_space.plan import Plan, Value
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Outcome, Purpose

_GO_ON = "run the same command again to go on with it"
_HOW_TO_WIN = {
    RunState.RUNNING: "wait for its end",
    RunState.KILLED: _GO_ON,
    RunState.INTERRUPTED: _GO_ON,
    RunState.FAILED: "mend what its error says and start another one",
    RunState.DONE: "start another one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with its evidence. One written by hand has no evidence: then it is None or empty.

    Attributes:
        plan: complete or partial, with the workload's own knobs.
        ranks: the processes it was measured on, one per device.
        own: what the plan gave.
        speedup: over the baseline.
        confirmed: measured again in fresh processes, interleaved with the baseline.
        how: how the numbers were obtained, in words.
        baseline: the user's own configuration.
        baseline_figures: what it gave.
        changes: for each changed knob why it is there, or what it is worth.
        remarks: lines the user must read.
        objective: what the plan was chosen for: its name, and what was asked for with it.
        workload_path, workload_hash: the file, and the hash of its contents.
        hardware, versions: where it was measured.
    """

    plan: Plan
    ranks: int | None = None
    own: PlanFigures = field(default_factory=PlanFigures)
    speedup: Interval | None = None
    confirmed: bool = False
    how: str | None = None
    baseline: Plan | None = None
    baseline_figures: PlanFigures = field(default_factory=PlanFigures)
    changes: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    objective: Mapping[str, Any] = field(default_factory=dict)
    workload_path: str | None = None
    workload_hash: str | None = None
    hardware: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def user_knobs(self) -> dict[str, Value]:
        """The part of the plan that the workload's own knobs make."""
        return split_plan(self.plan)[1]


def read_plan_file(store: SqlStore, run: RunRecord, number: int | None) -> PlanFile:
    """Return the plan file of a trial, or of the winner where `number` is None.

    Raises:
        UsageError: when the run has concluded nothing, or has no such trial.
    """
    if number is None:
        return plan_file_of(run)
    return plan_file_of_trial(
        run, store.trial(run, number), store.trials_for(run.id, [Purpose.BASELINE])
    )


def plan_file_of(run: RunRecord) -> PlanFile:
    """Return a run's winner with its evidence.

    Raises:
        UsageError: when the run has concluded nothing.
    """
    winner = run.winner
    if winner is None:
        raise UsageError(
            f"run {run.name} is {run.state.value} and has no winner; {_HOW_TO_WIN[run.state]}, or "
            "name one of its trials with --trial N"
        )
    return PlanFile(
        plan=winner.plan,
        ranks=run.new.num_ranks,
        own=winner.own,
        speedup=winner.speedup,
        confirmed=winner.confirmed,
        how=winner.how,
        baseline=run.new.baseline,
        baseline_figures=winner.baseline,
        changes=winner.changes,
        remarks=winner.remarks,
        objective=run.new.objective,
        **_origin(run),
    )


def plan_file_of_trial(
    run: RunRecord, trial: TrialRecord, baselines: Sequence[TrialRecord]
) -> PlanFile:
    """Return the plan of a trial with what it gave; `baselines` are the run's trials of its own.

    A trial of a scout on fewer ranks is compared with the baseline on as many.
    """
    own = [baseline for baseline in baselines if baseline.num_ranks == trial.num_ranks]
    throughput, baseline = _throughput(trial), _first_throughput(own)
    measured = trial.result and trial.result.measurement
    return PlanFile(
        plan=trial.plan,
        ranks=trial.num_ranks,
        own=PlanFigures(
            throughput=throughput, memory_bytes=measured.memory_bytes if measured else None
        ),
        speedup=Interval(ratio=throughput / baseline) if throughput and baseline else None,
        how=_how(trial),
        baseline=_own_baseline(run, trial, own),
        baseline_figures=PlanFigures(throughput=baseline),
        **_origin(run),
    )


def _own_baseline(
    run: RunRecord, trial: TrialRecord, baselines: Sequence[TrialRecord]
) -> Plan | None:
    if trial.num_ranks == run.new.num_ranks:
        return run.new.baseline
    return baselines[0].plan if baselines else None


def _origin(run: RunRecord) -> dict[str, Any]:
    hardware = dict(run.new.hardware)
    versions = hardware.pop("versions", {})
    return {
        "workload_path": run.new.workload_path,
        "workload_hash": run.new.workload_hash,
        "hardware": hardware,
        "versions": versions,
    }


def _throughput(trial: TrialRecord) -> float | None:
    measured = trial.result and trial.result.measurement
    return measured.throughput if measured else None


def _first_throughput(trials: Sequence[TrialRecord]) -> float | None:
    speeds = [_throughput(trial) for trial in trials]
    return next((speed for speed in speeds if speed is not None), None)


def _how(trial: TrialRecord) -> str:
    if trial.outcome is Outcome.OK:
        return f"trial {trial.number}, measured once and not confirmed"
    ended = trial.outcome.value if trial.outcome else "not finished"
    return f"trial {trial.number} gave no measurement: {ended}"
