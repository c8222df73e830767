"""Keeps what plans gave at the commit of their workload, so that commits can be compared."""

import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from autotune.agent.check.revision import commit_of, repository_of
from autotune.agent.check.sides import Level, level_of
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.target import Target
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.trends import Series, TrendPoint
from autotune.trials.result import Measurement, Purpose


def workload_name(target: Target) -> str:
    """Return what the points of a workload are kept under: the same on all clones."""
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
    run: RunRecord, trials: Iterable[TrialRecord], target: Target, hardware: Hardware
) -> Iterator[TrendPoint]:
    """Yield a point for the baseline of a run, and one for its winner if it was confirmed.

    They are means over the processes that ran alone: the baseline's first and the confirmation's.
    """
    commit, name = commit_of(target.path.parent), workload_name(target)
    plans = [run.new.baseline]
    if run.winner is not None and run.winner.confirmed and not run.winner.kept_baseline:
        plans.append(run.winner.plan)
    known = list(trials)
    for plan in plans:
        measured = list(_alone(known, plan, run.new.num_ranks))
        if measured:
            series = Series(
                workload=name,
                machine=hardware.fingerprint,
                plan_digest=plan.digest,
                num_ranks=run.new.num_ranks,
            )
            yield point_of(level_of(run.name, commit, measured), plan, series, hardware)


def _alone(trials: Iterable[TrialRecord], plan: Plan, num_ranks: int) -> Iterator[Measurement]:
    for trial in trials:
        is_alone = trial.purpose in (Purpose.BASELINE, Purpose.CONFIRM)
        if trial.plan == plan and is_alone and trial.num_ranks == num_ranks:
            if trial.result is not None and trial.result.measurement is not None:
                yield trial.result.measurement
