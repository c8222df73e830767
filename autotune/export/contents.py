"""The contents of a plan file, and how they are made from a stored run or trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import UsageError
from autotune.export.values import split_plan
from autotune.report.conclusion import explained_changes, headline, why_lines
from autotune.report.verdict import verdict_of
from autotune.report.why import why_of
from autotune.search_space.command import Command
from autotune.search_space.plan import Plan, Value
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Outcome, Purpose

_GO_ON = "run the same command again to go on with it"
# What to do about a run without a winner, by its state.
_HOW_TO_GET_A_WINNER = {
    RunState.RUNNING: "wait until it ends",
    RunState.KILLED: _GO_ON,
    RunState.INTERRUPTED: _GO_ON,
    RunState.FAILED: "correct what its error says and start another run",
    RunState.DONE: "start another run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with its measured results. In a file written by hand, these may be None or empty.

    Attributes:
        plan: the values of all knobs or of some, with those of the workload's own knobs.
        ranks: the number of ranks it was measured on, each with a device.
        own: what the plan gave.
        speedup: over the baseline, with the 95 % interval.
        confirmed: whether it was measured again in fresh processes, in turn with the baseline.
        how: how the numbers were measured, in words.
        baseline: the user's own configuration.
        baseline_figures: what it gave.
        verdict: whether the winner is better for sure, and by how much, in words.
        why: what its settings are worth, a line for each, in the order of the waterfall.
        changes: for each changed knob what it is worth and what it does, in words.
        remarks: sentences that the user must read.
        objective: the name of the objective, and its options.
        workload_path, workload_hash: the workload's file, and the hash of its contents.
        command: the command that it was measured with; None: the workload's functions.
        hardware, versions: of the machine that it was measured on.
    """

    plan: Plan
    ranks: int | None = None
    own: PlanFigures = field(default_factory=PlanFigures)
    speedup: Interval | None = None
    confirmed: bool = False
    how: str | None = None
    verdict: str | None = None
    why: tuple[str, ...] = ()
    baseline: Plan | None = None
    baseline_figures: PlanFigures = field(default_factory=PlanFigures)
    changes: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    objective: Mapping[str, Any] = field(default_factory=dict)
    workload_path: str | None = None
    workload_hash: str | None = None
    command: Command | None = None
    hardware: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def user_knobs(self) -> dict[str, Value]:
        """The values of the workload's own knobs."""
        return split_plan(self.plan)[1]


def read_plan_file(store: SqlStore, run: RunRecord, number: int | None) -> PlanFile:
    """Return the plan file of trial `number`, or for None that of the winner.

    Raises:
        UsageError: when the run has no winner.
        NotFoundError: when it has no such trial.
    """
    if number is None:
        return plan_file_of(run, store.trials_for(run.id, list(Purpose)))
    return plan_file_of_trial(
        run, store.trial(run, number), store.trials_for(run.id, [Purpose.BASELINE])
    )


def plan_file_of(run: RunRecord, trials: Sequence[TrialRecord]) -> PlanFile:
    """Return the plan file of a run's winner, given all trials of the run.

    Raises:
        UsageError: when the run has no winner.
    """
    winner = run.winner
    if winner is None:
        raise UsageError(
            f"run {run.name} is {run.state.value} and has no winner; "
            f"{_HOW_TO_GET_A_WINNER[run.state]}, or name one of its trials with --trial N"
        )
    verdict, why = verdict_of(run, trials), why_of(run, trials)
    return PlanFile(
        plan=winner.plan,
        ranks=run.new.num_ranks,
        own=winner.own,
        speedup=winner.speedup,
        confirmed=winner.confirmed,
        how=winner.how,
        verdict=headline(verdict) if verdict else None,
        why=why_lines(why) if why else (),
        baseline=run.new.baseline,
        baseline_figures=winner.baseline,
        changes=explained_changes(winner.changes, why),
        remarks=winner.remarks,
        objective=run.new.objective,
        **_origin(run),
    )


def plan_file_of_trial(
    run: RunRecord, trial: TrialRecord, baselines: Sequence[TrialRecord]
) -> PlanFile:
    """Return the plan file of a trial.

    It is compared with the first of `baselines` that was measured on the same number of ranks.
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
        how=_how_measured(trial),
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
    command = run.new.facts.get("command")
    return {
        "workload_path": run.new.workload_path,
        "workload_hash": run.new.workload_hash,
        "command": command and Command.from_dict(command),
        "hardware": hardware,
        "versions": versions,
    }


def _throughput(trial: TrialRecord) -> float | None:
    measured = trial.result and trial.result.measurement
    return measured.throughput if measured else None


def _first_throughput(trials: Sequence[TrialRecord]) -> float | None:
    speeds = [_throughput(trial) for trial in trials]
    return next((speed for speed in speeds if speed is not None), None)


def _how_measured(trial: TrialRecord) -> str:
    if trial.outcome is Outcome.OK:
        return f"trial {trial.number}, measured once and not confirmed"
    ended = trial.outcome.value if trial.outcome else "not finished"
    return f"trial {trial.number} gave no measurement: {ended}"
