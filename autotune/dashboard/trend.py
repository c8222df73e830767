"""What workloads gave over commits and dates, gathered for the page of trends."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.dashboard.changes import level_starts
from autotune.storage.sql import SqlStore
from autotune.storage.trends import Series, TrendPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a trend is of: a workload on devices of a kind."""

    workload: str
    device: str
    num_ranks: int

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters that name it in an address."""
        ranks = str(self.num_ranks)
        return {"workload": self.workload, "device": self.device, "ranks": ranks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points that may be compared, in the order of their commits.

    Attributes:
        name: what they have in common beside the subject, in words.
        starts: positions at which a new level of the throughput is likely to begin.
    """

    name: str
    points: tuple[TrendPoint, ...]
    starts: tuple[int, ...]


def trends_of(store: SqlStore) -> dict[Subject, list[Line]]:
    """Return the lines of each subject; those with the newest points first."""
    found: dict[Subject, list[list[TrendPoint]]] = {}
    for series in store.trends.all_series():
        points = sorted(store.trends.points(series), key=when)
        found.setdefault(_subject(series, points[-1]), []).append(points)
    return {subject: _lines(groups) for subject, groups in found.items()}


def when(point: TrendPoint) -> datetime:
    """Return when a point's commit was made; outside of a repository, when it was measured."""
    if point.committed_at is None or point.is_changed:
        return point.measured_at
    return point.committed_at


def versions(point: TrendPoint) -> dict[str, Any]:
    """Return the versions of the machine that a point was measured on."""
    return dict(point.hardware.get("versions", {}))


def _subject(series: Series, point: TrendPoint) -> Subject:
    device = str(point.hardware.get("device_name", "unknown device"))
    return Subject(workload=series.workload, device=device, num_ranks=series.num_ranks)


def _lines(groups: Iterable[list[TrendPoint]]) -> list[Line]:
    return [
        Line(
            name=_name(points[-1]),
            points=tuple(points),
            starts=tuple(level_starts([point.throughput for point in points])),
        )
        for points in groups
    ]


def _name(point: TrendPoint) -> str:
    torch = versions(point).get("torch")
    plan = f"plan {point.series.plan_digest}"
    return f"{plan}, torch {torch}" if torch else plan
