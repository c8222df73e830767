"""The two things that a check measures in turn, and what it found of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.agent.bench import Subject
from autotune.agent.check.limits import Finding
from autotune.agent.check.revision import Commit
from autotune.storage.trends import TrendPoint
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


def level_of_points(points: Sequence[TrendPoint]) -> Level:
    """Return the mean of at least one earlier point, each of which counts as one process."""
    return level_of("stored", None, points)


def level_of(
    name: str, commit: Commit | None, found: Sequence[Measurement] | Sequence[TrendPoint]
) -> Level:
    """Return what a side gave in at least one process."""
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
