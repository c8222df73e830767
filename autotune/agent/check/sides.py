"""The two things that a check measures in turn, and what it found of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.agent.bench import Subject
from autotune.agent.check.limits import Finding
from autotune.agent.check.revision import Commit
from autotune.search_space.hardware import Hardware
from autotune.storage.trends import Series, TrendPoint
from autotune.trials.interval import relative_half_width
from autotune.trials.result import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two things that are compared.

    Attributes:
        name: for the user: `now`, or what `--against` names.
        commit: None outside of a repository.
        subject: what is measured.
    """

    name: str
    commit: Commit | None
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a side gave, means over processes.

    Attributes:
        throughput: samples per second; `low` and `high` its 95 % interval over processes, None
            where there was one.
        memory_bytes, first_step_s: of a process.
    """

    name: str
    commit: Commit | None
    num_processes: int
    throughput: float
    low: float | None
    high: float | None
    memory_bytes: int | None
    first_step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check.

    Attributes:
        now: what was measured of the workload as it is.
        reference: what it is compared with; None: there was nothing to compare with yet.
        findings: for each limit.
        num_rounds: measurements of each side.
        seconds: wall clock of the check.
        drops: of the points in a row that end with this one, how many were slower than allowed;
            None where two sides were measured in turn, which one comparison decides.
    """

    now: Level
    reference: Level | None
    findings: tuple[Finding, ...]
    num_rounds: int
    seconds: float
    drops: int | None = None


def level_of(side: Side, measured: Sequence[Measurement]) -> Level:
    """Return what a side gave in at least one process."""
    return _level(side.name, side.commit, measured)


def level_of_points(points: Sequence[TrendPoint]) -> Level:
    """Return the mean of at least one earlier point, each of which counts as one process."""
    return _level("stored", None, points)


def _level(
    name: str, commit: Commit | None, found: Sequence[Measurement] | Sequence[TrendPoint]
) -> Level:
    throughputs = [one.throughput for one in found]
    memory = [one.memory_bytes for one in found if one.memory_bytes is not None]
    first = [one.first_step_s for one in found if one.first_step_s is not None]
    mean, half = statistics.fmean(throughputs), relative_half_width(throughputs)
    is_known = math.isfinite(half)
    return Level(
        name=name,
        commit=commit,
        num_processes=len(found),
        throughput=mean,
        low=max(0.0, mean * (1 - half)) if is_known else None,
        high=mean * (1 + half) if is_known else None,
        memory_bytes=round(statistics.fmean(memory)) if memory else None,
        first_step_s=statistics.fmean(first) if first else None,
    )


def series_of(side: Side, workload: str, hardware: Hardware, num_ranks: int) -> Series:
    """Return the series that measurements of a side belong to."""
    return Series(
        workload=workload,
        machine=hardware.fingerprint,
        plan_digest=side.subject.plan.digest,
        num_ranks=num_ranks,
    )


def point_of(
    side: Side, level: Level, series: Series, hardware: Hardware, *, is_drop: bool = False
) -> TrendPoint:
    """Return what is kept of a side."""
    commit = side.commit
    return TrendPoint(
        series=series,
        hardware=hardware.to_dict(),
        plan=side.subject.plan,
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
