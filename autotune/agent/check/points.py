"""Keeps what plans gave at the commit of their workload, so that commits can be compared."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.agent.check.revision import Commit, commit_of, repository_of
from autotune.agent.check.sides import Level, level_of
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.target import Target
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.trends import Series, TrendPoint
from autotune.trials.result import Measurement, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of what points are: a workload, at a commit.

    Attributes:
        workload: what its points are kept under: the same on all clones.
        commit: None outside of a repository, and where git does not answer.
    """

    workload: str
    commit: Commit | None

    def series(self, plan: Plan, hardware: Hardware, num_ranks: int) -> Series:
        """Return the series that a plan's points belong to."""
        return Series(
            workload=self.workload,
            machine=hardware.fingerprint,
            plan_digest=plan.digest,
            num_ranks=num_ranks,
        )


def origin_of(target: Target) -> Origin:
    """Return the origin of what is measured of a target from now on."""
    return Origin(workload=_name(target), commit=commit_of(target.path.parent))


def _name(target: Target) -> str:
    if target.command is not None:
        return shlex.join(target.command.argv)
    repository = repository_of(target.path.parent)
    path = target.path.resolve()
    name = str(path.relative_to(repository)) if repository else path.name
    return shlex.join((name, *target.arguments))


def point_of(
    level: Level, plan: Plan, series: Series, hardware: Hardware, *, is_drop: bool = False
) -> TrendPoint:
    """Return what is kept of a plan that was measured just now."""
    commit = level.commit
    return TrendPoint(
        series=series,
        hardware=hardware.to_dict(),
        plan=plan,
        measured_at=datetime.now(UTC),
        commit_hash=commit.hash if commit else None,
        committed_at=commit.at if commit else None,
        commit_subject=commit.subject if commit else None,
        is_changed=commit is not None and commit.is_changed,
        num_processes=level.num_processes,
        throughput=level.throughput,
        throughput_low=level.low,
        throughput_high=level.high,
        memory_bytes=level.memory_bytes,
        first_step_s=level.first_step_s,
        is_drop=is_drop,
    )


def points_of_run(
    run: RunRecord, trials: Sequence[TrialRecord], origin: Origin, hardware: Hardware
) -> Iterator[TrendPoint]:
    """Yield a point for the baseline of a run, and one for its winner if it was confirmed.

    They are means over the processes that ran alone: the baseline's first and the confirmation's.

    Args:
        run: that has ended.
        trials: all of its trials.
        origin: the workload's when the run began.
        hardware: the machine.
    """
    plans = [run.new.baseline]
    if run.winner is not None and run.winner.confirmed and not run.winner.kept_baseline:
        plans.append(run.winner.plan)
    for plan in plans:
        measured = _measured_alone(trials, plan, run.new.num_ranks)
        if measured:
            level = level_of(run.name, origin.commit, measured)
            series = origin.series(plan, hardware, run.new.num_ranks)
            yield point_of(level, plan, series, hardware)


def _measured_alone(
    trials: Sequence[TrialRecord], plan: Plan, num_ranks: int
) -> list[Measurement]:
    """Return what the baseline's first process and the confirmation's measured of a plan."""
    results = (
        trial.result
        for trial in trials
        if trial.plan == plan
        and trial.num_ranks == num_ranks
        and trial.purpose in (Purpose.BASELINE, Purpose.CONFIRM)
    )
    return [result.measurement for result in results if result and result.measurement]
