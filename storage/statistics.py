"""Statistics over the trials of a run, computed by the database: runs may have many trials."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, String, case, cast, func, select
from sqlalchemy.orm import Session

from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.dots import MEMORY, Dot, read_dots
from autotune.storage.records import NOT_SEARCHED, RunRecord
from autotune.storage.tables import TrialRow
from autotune.trials.result import Outcome

IN_FLIGHT = "in flight"
"""Counted in place of an outcome for trials that have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured trial as charts show it, with its throughput in samples per second."""

    number: int
    throughput: float
    memory_bytes: int | None
    finished_at: datetime
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEffect:
    """The measured trials with one value of a knob; throughputs in samples per second.

    Attributes:
        value: as JSON would write it, without quotes.
        num_trials: how many there are.
        slowest, mean, fastest: their throughputs.
    """

    value: str
    num_trials: int
    slowest: float
    mean: float
    fastest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """How throughput differs between the values of a knob, over all trials that have it.

    Attributes:
        knob: its name.
        explained: the part of the variance of throughput that lies between the knob's values
            (eta squared of a one-way analysis of variance). It is a hint, as the search tries
            good plans more often; only flipping the knob alone shows what it is worth.
        values: the fastest first.
    """

    knob: str
    explained: float
    values: tuple[ValueEffect, ...]


class RunStatistics:
    """Statistics over the trials of one run; those of scouts on fewer ranks do not count.

    Args:
        database: open for reading.
        run: whose trials.
    """

    def __init__(self, database: Database, run: RunRecord) -> None:
        self._database = database
        self._run = run
        self._of_run = TrialRow.run_id == run.id
        self._measured = (
            self._of_run
            & (TrialRow.outcome == Outcome.OK.value)
            & (TrialRow.num_ranks == run.new.num_ranks)
            & TrialRow.purpose.not_in([purpose.value for purpose in NOT_SEARCHED])
            & TrialRow.throughput.is_not(None)
        )

    def outcomes(self) -> dict[str, int]:
        """Return how many trials ended in each outcome, the most frequent first."""
        count = func.count()
        query = (
            select(TrialRow.outcome, count)
            .where(self._of_run)
            .group_by(TrialRow.outcome)
            .order_by(count.desc(), TrialRow.outcome.is_(None), TrialRow.outcome)
        )
        with self._database.reading() as session:
            return {outcome or IN_FLIGHT: number for outcome, number in session.execute(query)}

    def failures(self) -> list[tuple[str, int, int]]:
        """Return each kind of failure: outcome, number of trials, and the latest one's number.

        The most frequent comes first. A cancelled trial is no failure.
        """
        fine = [Outcome.OK.value, Outcome.CANCELLED.value]
        count = func.count()
        query = (
            select(TrialRow.outcome, count, func.max(TrialRow.number))
            .where(self._of_run, TrialRow.outcome.not_in(fine))
            .group_by(TrialRow.outcome)
            .order_by(count.desc(), TrialRow.outcome)
        )
        with self._database.reading() as session:
            return [(str(outcome), count, last) for outcome, count, last in session.execute(query)]

    def progress(self) -> tuple[int, int]:
        """Return how many trials there are, and how many of them have ended."""
        query = select(func.count(), func.count(TrialRow.outcome)).where(self._of_run)
        with self._database.reading() as session:
            total, ended = session.execute(query).one()
        return total, ended

    def last_end(self) -> datetime | None:
        """Return when the latest trial ended; None before any has."""
        with self._database.reading() as session:
            return session.scalar(select(func.max(TrialRow.finished_at)).where(self._of_run))

    def num_measured(self) -> int:
        """Return how many search trials on all ranks were measured."""
        with self._database.reading() as session:
            return self._count(session)

    def best_so_far(self) -> list[Point]:
        """Return the trials that were faster than all that had ended before, in their order."""
        order = (TrialRow.finished_at, TrialRow.number)
        best = func.max(TrialRow.throughput).over(order_by=order, rows=(None, 0))
        inner = select(TrialRow.number, TrialRow.throughput, best.label("best"))
        known = inner.where(self._measured).subquery()
        record = select(func.min(known.c.number)).where(known.c.throughput == known.c.best)
        return sorted(
            self._points(TrialRow.number.in_(record.group_by(known.c.best))),
            key=lambda point: point.throughput,
        )

    def front(self) -> list[Point]:
        """Return the trials that are faster than all that need no more memory, fastest first.

        Trials whose memory is unknown are left out.
        """
        order = (TrialRow.throughput.desc(), MEMORY, TrialRow.number)
        least = func.min(MEMORY).over(order_by=order, rows=(None, -1))
        inner = select(TrialRow.number, MEMORY.label("memory"), least.label("least"))
        known = inner.where(self._measured & MEMORY.is_not(None)).subquery()
        undercuts = known.c.least.is_(None) | (known.c.memory < known.c.least)
        points = self._points(TrialRow.number.in_(select(known.c.number).where(undercuts)))
        return sorted(points, key=lambda point: -point.throughput)

    def sample(self, at_most: int) -> list[Point]:
        """Return measured trials by number: all, or every k-th where there are more."""
        with self._database.reading() as session:
            thin = self._every(session, at_most)
        return self._points(thin)

    def dots(self, at_most: int) -> list[Dot]:
        """Return trials of every kind and outcome by number: all, or every k-th of more."""
        return read_dots(self._database, self._run, at_most)

    def latest(self, at_most: int) -> list[int]:
        """Return the numbers of the latest trials of any kind, in their order."""
        query = select(TrialRow.number).where(self._of_run).order_by(TrialRow.number.desc())
        with self._database.reading() as session:
            return sorted(session.scalars(query.limit(at_most)))

    def neighbours(self, number: int) -> tuple[int | None, int | None]:
        """Return the numbers of the trials before and after a trial; None where there is none."""
        own = TrialRow.number
        before = select(func.max(own)).where(self._of_run, own < number)
        after = select(func.min(own)).where(self._of_run, own > number)
        with self._database.reading() as session:
            return session.scalar(before), session.scalar(after)

    def knob_effects(self, at_most: int) -> list[KnobEffect]:
        """Return the effect of each knob with several values, the largest first.

        Args:
            at_most: trials to look at; of more, every k-th.
        """
        with self._database.reading() as session:
            query = self._by_knob_and_value(session, self._every(session, at_most))
            rows = [tuple(row) for row in session.execute(query)]
        grouped = groupby(rows, key=lambda row: row[0])
        effects = [_knob_effect(knob, list(of_knob)) for knob, of_knob in grouped]
        return sorted(
            (effect for effect in effects if len(effect.values) > 1),
            key=lambda effect: -effect.explained,
        )

    def _count(self, session: Session) -> int:
        return session.scalar(select(func.count()).where(self._measured)) or 0

    def _every(self, session: Session, at_most: int) -> ColumnElement[bool]:
        step = -(-self._count(session) // at_most) or 1
        return TrialRow.number % step == 0 if step > 1 else self._measured

    def _points(self, which: ColumnElement[bool]) -> list[Point]:
        query = select(
            TrialRow.number,
            TrialRow.throughput,
            MEMORY.label("memory_bytes"),
            TrialRow.finished_at,
            TrialRow.plan,
        )
        query = query.where(self._measured & which).order_by(TrialRow.number)
        with self._database.reading() as session:
            return [
                Point(**{**row, "plan": Plan.of(row["plan"])})
                for row in session.execute(query).mappings()
            ]

    def _by_knob_and_value(
        self, session: Session, thin: ColumnElement[bool]
    ) -> "Select[*tuple[Any, ...]]":
        knob, value, items = _knobs_of_plans(session)
        speed = TrialRow.throughput
        return (
            select(
                knob,
                value,
                func.count(),
                func.min(speed),
                func.avg(speed),
                func.max(speed),
                func.sum(speed * speed),
            )
            .select_from(TrialRow)
            .join(items, onclause=func.length(knob) > 0)  # a lateral join wants a condition
            .where(self._measured & thin)
            .group_by(knob, value)
            .order_by(knob)
        )


def _knobs_of_plans(session: Session) -> tuple[ColumnElement[Any], ColumnElement[Any], Any]:
    """Return the expressions that unfold each plan into rows: knob, value as text, the rows."""
    if session.get_bind().dialect.name == "sqlite":
        items = func.json_each(TrialRow.plan).table_valued("key", "value", "type")
        # SQLite has no booleans; its JSON still knows which of its numbers were some.
        is_boolean = items.c.type.in_(["true", "false"])
        text = case((is_boolean, items.c.type), else_=cast(items.c.value, String))
        return items.c.key, text, items
    items = func.json_each_text(TrialRow.plan).table_valued("key", "value")
    return items.c.key, items.c.value, items


def _knob_effect(knob: str, rows: Iterable[tuple[Any, ...]]) -> KnobEffect:
    values, squares = [], 0.0
    for _, value, count, slowest, mean, fastest, sum_of_squares in rows:
        squares += sum_of_squares
        values.append(
            ValueEffect(value=value, num_trials=count, slowest=slowest, mean=mean, fastest=fastest)
        )
    values.sort(key=lambda effect: -effect.fastest)
    total = sum(v.num_trials for v in values)
    mean_of_all = sum(v.mean * v.num_trials for v in values) / total
    spread = squares - total * mean_of_all**2
    between = sum(v.num_trials * (v.mean - mean_of_all) ** 2 for v in values)
    return KnobEffect(
        knob=knob,
        explained=min(between / spread, 1.0) if spread > 0 else 0.0,
        values=tuple(values),
    )
