"""All trials of a run as charts draw them: measured, failed and in flight."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, select

from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.records import RunRecord
from autotune.storage.tables import TrialRow
from autotune.trials.result import Outcome, Purpose

MEMORY = func.coalesce(TrialRow.peak_reserved_overall_bytes, TrialRow.peak_host_bytes)
"""The peak memory of a trial's worst rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A trial as charts draw it; throughputs in samples per second, with their 95 % interval.

    Attributes:
        number, purpose, plan, num_ranks, started_at, finished_at: as in `TrialRecord`.
        outcome: how it ended; None while it is in flight.
        throughput, low, high: None without a measurement.
        memory_bytes: the peak of the worst rank; None where it is unknown.
    """

    number: int
    purpose: Purpose
    outcome: Outcome | None
    plan: Plan
    num_ranks: int
    started_at: datetime
    finished_at: datetime | None
    throughput: float | None
    low: float | None
    high: float | None
    memory_bytes: int | None


def read_dots(database: Database, run: RunRecord, at_most: int) -> list[Dot]:
    """Return the run's trials by number: all, or every k-th where there are more."""
    step = max(-(-run.num_trials // at_most), 1)
    query = select(
        TrialRow.number,
        TrialRow.purpose,
        TrialRow.outcome,
        TrialRow.plan,
        TrialRow.num_ranks,
        TrialRow.started_at,
        TrialRow.finished_at,
        TrialRow.throughput,
        TrialRow.throughput_low.label("low"),
        TrialRow.throughput_high.label("high"),
        MEMORY.label("memory_bytes"),
    ).where(_of(run), TrialRow.number % step == 0 if step > 1 else _of(run))
    with database.reading() as session:
        rows = session.execute(query.order_by(TrialRow.number)).mappings().all()
    return [
        Dot(
            **{
                **row,
                "plan": Plan.of(row["plan"]),
                "purpose": Purpose(row["purpose"]),
                "outcome": row["outcome"] and Outcome(row["outcome"]),
            }
        )
        for row in rows
    ]


def _of(run: RunRecord) -> ColumnElement[bool]:
    return TrialRow.run_id == run.id
