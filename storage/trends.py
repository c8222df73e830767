"""What plans of workloads gave at each commit, from one `autotune check` to another."""

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.tables import TrendPointRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What the points of a trend have in common: only such may be compared.

    Attributes:
        workload: the path in its repository, or the command.
        machine: the fingerprint of the hardware and its versions.
        plan_digest: of the plan.
        num_ranks: devices of a measurement.
    """

    workload: str
    machine: str
    plan_digest: str
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """What a plan of a workload gave at one commit. Unknown is None.

    Attributes:
        hardware: plain JSON values.
        measured_at: when the last process ended.
        commit_hash, committed_at, commit_subject: None outside of a repository.
        is_changed: tracked files differed from the commit.
        num_processes: fresh processes that the numbers are means over.
        throughput: samples per second; `throughput_low` and `throughput_high` its interval over
            these processes.
        memory_bytes: peak of a process.
        first_step_s: seconds of the first step, compilation included.
        is_drop: it was slower than the points before it allow.
    """

    series: Series
    hardware: dict[str, Any]
    plan: Plan
    measured_at: datetime
    commit_hash: str | None
    committed_at: datetime | None
    commit_subject: str | None
    is_changed: bool
    num_processes: int
    throughput: float
    throughput_low: float | None
    throughput_high: float | None
    memory_bytes: int | None
    first_step_s: float | None
    is_drop: bool = False


_COLUMNS = [field.name for field in fields(TrendPoint) if field.name not in ("series", "plan")]


class Trends:
    """The trend points of a store.

    Args:
        database: open; for reading alone where nothing is to be kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, point: TrendPoint) -> None:
        """Store a point after those of its series."""
        own = {name: getattr(point, name) for name in _COLUMNS}
        row = TrendPointRow(**own, **asdict(point.series), plan=point.plan.values)
        with self._database.writing() as session:
            session.add(row)

    def points(self, series: Series) -> list[TrendPoint]:
        """Return the points of a series, the oldest first."""
        query = select(TrendPointRow).filter_by(**asdict(series)).order_by(TrendPointRow.id)
        with self._database.reading() as session:
            return [_point(row) for row in session.scalars(query)]

    def all_series(self) -> list[Series]:
        """Return all series, the one with the newest point first."""
        columns = [getattr(TrendPointRow, field.name) for field in fields(Series)]
        query = select(*columns).group_by(*columns).order_by(func.max(TrendPointRow.id).desc())
        with self._database.reading() as session:
            return [Series(**row) for row in session.execute(query).mappings()]


def _series(row: TrendPointRow) -> Series:
    return Series(**{field.name: getattr(row, field.name) for field in fields(Series)})


def _point(row: TrendPointRow) -> TrendPoint:
    own = {name: getattr(row, name) for name in _COLUMNS}
    return TrendPoint(**own, series=_series(row), plan=Plan.of(row.plan))
