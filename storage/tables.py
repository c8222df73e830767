"""The tables as classes for SQLAlchemy. A test keeps them equal to what `migrations/` creates."""

import math
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import DateTime


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone, kept in UTC; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC, also where SQLite gives it without a zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Number(TypeDecorator[float]):
    """A finite number or NULL: SQLite has no NaN, PostgreSQL takes it for the largest number."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """Return None for NaN and infinities."""
        return value if value is not None and math.isfinite(value) else None


class Words(TypeDecorator[str]):
    """Text of any origin, such as a log: PostgreSQL refuses NUL, and UTF-8 lone surrogates."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text with replacement characters for what the database cannot hold."""
        if value is None:
            return None
        return value.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


class Base(DeclarativeBase):
    """Base of all tables; it names their constraints, so that migrations can find them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: Words,
        float: Number,
        int: BigInteger,
        datetime: UtcTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


# SQLite numbers rows by itself only for INTEGER, which is 64 bits wide there.
RowNumber = Annotated[
    int, mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
]


class RunRow(Base):
    """One `autotune run`."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_key", "key", "state"),)

    id: Mapped[RowNumber]
    name: Mapped[str] = mapped_column(String(255), unique=True)
    key: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(32))
    workload_path: Mapped[str]
    workload_hash: Mapped[str]
    hardware: Mapped[dict[str, Any]]
    facts: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]]
    baseline: Mapped[dict[str, Any]]
    budget_s: Mapped[float]
    used_s: Mapped[float] = mapped_column(default=0.0)
    driver: Mapped[str]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    stop_reason: Mapped[str | None]


class TrialRow(Base):
    """One trial, with `Measurement`'s fields as columns; `outcome` is NULL while in flight."""

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_throughput", "run_id", "throughput"),
        # All that overviews of a run read, so that they need not touch the wide rows.
        Index(
            "ix_trials_measured",
            "run_id",
            "outcome",
            "num_ranks",
            "purpose",
            "number",
            "throughput",
            "peak_reserved_overall_bytes",
            "peak_host_bytes",
            "finished_at",
        ),
    )

    run_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("runs.id"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    plan: Mapped[dict[str, Any]]
    purpose: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str]
    num_ranks: Mapped[int] = mapped_column(server_default="1")
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    log_path: Mapped[str | None]
    expected_throughput: Mapped[float | None]
    chance_of_gain: Mapped[float | None]
    expected_s: Mapped[float | None]

    outcome: Mapped[str | None] = mapped_column(String(32))
    phase: Mapped[str | None] = mapped_column(String(32))
    cause: Mapped[str | None] = mapped_column(String(32))
    error: Mapped[str | None]
    user_error: Mapped[bool | None]
    peer_lost: Mapped[bool | None]
    requested_bytes: Mapped[int | None]
    overhead_s: Mapped[float | None]
    total_s: Mapped[float | None]

    throughput: Mapped[float | None]
    throughput_low: Mapped[float | None]
    throughput_high: Mapped[float | None]
    step_ms: Mapped[float | None]
    step_ms_spread: Mapped[float | None]
    data_wait_share: Mapped[float | None]
    build_s: Mapped[float | None]
    first_step_s: Mapped[float | None]
    warm_up_s: Mapped[float | None]
    measure_s: Mapped[float | None]
    first_loss: Mapped[float | None]
    last_loss: Mapped[float | None]
    settled: Mapped[bool | None]
    raced: Mapped[bool | None]
    peak_allocated_bytes: Mapped[int | None]
    peak_reserved_bytes: Mapped[int | None]
    peak_reserved_overall_bytes: Mapped[int | None]
    peak_host_bytes: Mapped[int | None]
    alloc_retries: Mapped[int | None]
    exposed_comm_share: Mapped[float | None]
    other_work_share: Mapped[float | None]
    longest_batch_of: Mapped[int | None]
    recompile_limit_hits: Mapped[int | None]

    numerics: Mapped[dict[str, Any] | None]
    quality: Mapped[dict[str, Any] | None]
    diagnosis: Mapped[dict[str, Any] | None]
    traceback: Mapped[str | None]
    log_tail: Mapped[str | None]


class WindowRow(Base):
    """One window of a trial's measurement, in order of `position`."""

    __tablename__ = "windows"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "number"], ["trials.run_id", "trials.number"], ondelete="CASCADE"
        ),
        {"sqlite_with_rowid": False},
    )

    run_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[int]
    samples: Mapped[int]
    seconds: Mapped[float]
    data_wait_s: Mapped[float]


class PlanRow(Base):
    """The conclusion of a run: its winner."""

    __tablename__ = "plans"

    run_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("runs.id"), primary_key=True, autoincrement=False
    )
    plan: Mapped[dict[str, Any]]
    kept_baseline: Mapped[bool]
    confirmed: Mapped[bool]
    speedup: Mapped[float | None]
    speedup_low: Mapped[float | None]
    speedup_high: Mapped[float | None]
    throughput: Mapped[float]
    baseline_throughput: Mapped[float]
    memory_bytes: Mapped[int | None]
    baseline_memory_bytes: Mapped[int | None]
    how: Mapped[str]
    changes: Mapped[dict[str, Any]]
    remarks: Mapped[list[Any]]
    train_s: Mapped[float | None]
    baseline_train_s: Mapped[float | None]
    start_s: Mapped[float | None]
    baseline_start_s: Mapped[float | None]


class KnobRow(Base):
    """A knob of some plan and the JSON type of its values; `trials_wide` has a column for it."""

    __tablename__ = "knobs"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)


class NoteRow(Base):
    """A note on a run, or on the trial of a run; 0 in place of a trial's number is the run."""

    __tablename__ = "notes"

    run_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("runs.id"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]
    tags: Mapped[list[Any]]
    changed_at: Mapped[datetime]


class JobRow(Base):
    """One job of the search service: a run that was submitted to it."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_state", "state"),)

    id: Mapped[RowNumber]
    key: Mapped[str] = mapped_column(String(255), unique=True)
    run_name: Mapped[str] = mapped_column(String(255), unique=True)
    name: Mapped[str | None] = mapped_column(String(255))
    owner: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(32))
    priority: Mapped[int]
    num_devices: Mapped[int]
    budget_s: Mapped[float]
    request: Mapped[dict[str, Any]]
    devices: Mapped[list[Any]]
    server: Mapped[str | None]
    process: Mapped[str | None]
    num_starts: Mapped[int]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    cancelled_by: Mapped[str | None] = mapped_column(String(255))
    cancelled_at: Mapped[datetime | None]
    exit_code: Mapped[int | None]
    message: Mapped[str | None]


class JobEventRow(Base):
    """Something that happened to a job."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id", "job_id", "id"),)

    id: Mapped[RowNumber]
    job_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("jobs.id"))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(32))
    text: Mapped[str]


class TokenRow(Base):
    """A token that the search service accepts; `digest` stands in place of the token itself."""

    __tablename__ = "tokens"

    id: Mapped[RowNumber]
    name: Mapped[str] = mapped_column(String(255), unique=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(32))
    max_devices: Mapped[int | None]
    max_hours: Mapped[float | None]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class AuditRow(Base):
    """What somebody did to the search service."""

    __tablename__ = "audit"

    id: Mapped[RowNumber]
    at: Mapped[datetime]
    who: Mapped[str] = mapped_column(String(255))
    action: Mapped[str] = mapped_column(String(32))
    about: Mapped[str]


class ServerRow(Base):
    """The server that is in charge of the jobs."""

    __tablename__ = "servers"

    role: Mapped[str] = mapped_column(String(32), primary_key=True)
    process: Mapped[str]
    address: Mapped[str]
    beats: Mapped[int]
    started_at: Mapped[datetime]


class TrendPointRow(Base):
    """What a plan of a workload gave at one commit on one machine."""

    __tablename__ = "trend_points"
    __table_args__ = (Index("ix_trend_points_series", "workload", "machine", "plan_digest"),)

    id: Mapped[RowNumber]
    workload: Mapped[str]
    machine: Mapped[str] = mapped_column(String(32))
    hardware: Mapped[dict[str, Any]]
    plan_digest: Mapped[str] = mapped_column(String(64))
    plan: Mapped[dict[str, Any]]
    num_ranks: Mapped[int]
    measured_at: Mapped[datetime]
    commit_hash: Mapped[str | None]
    committed_at: Mapped[datetime | None]
    commit_subject: Mapped[str | None]
    is_changed: Mapped[bool]
    num_processes: Mapped[int]
    throughput: Mapped[float]
    throughput_low: Mapped[float | None]
    throughput_high: Mapped[float | None]
    memory_bytes: Mapped[int | None]
    first_step_s: Mapped[float | None]
    is_drop: Mapped[bool]
