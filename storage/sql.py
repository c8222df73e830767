"""The store in a database: SQLite by default, PostgreSQL by URL."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Select, delete, func, insert, select, update
from sqlalchemy.orm import Session

from autotune.errors import NotFoundError, nearest
from autotune.search_space.plan import Plan
from autotune.storage.access import Audit, Tokens
from autotune.storage.database import BUSY_S, Database
from autotune.storage.jobs import Jobs
from autotune.storage.lease import Lease
from autotune.storage.location import locate
from autotune.storage.naming import check_name, default_name, name_taken, no_such_run
from autotune.storage.notes import Notes
from autotune.storage.records import (
    UNFINISHED,
    NewRun,
    Promise,
    RunRecord,
    RunState,
    TrialRecord,
    Winner,
)
from autotune.storage.rows import (
    fill_result,
    plan_row,
    run_record,
    trial_record,
    window_values,
)
from autotune.storage.schema import prepare
from autotune.storage.statistics import RunStatistics
from autotune.storage.tables import PlanRow, RunRow, TrialRow, WindowRow
from autotune.storage.trends import Trends
from autotune.storage.wide import remember_knobs
from autotune.trials.result import Purpose, TrialResult

NUMBERS_AT_ONCE = 10_000
"""Bound values of a statement at most: SQLite takes 32 766 of them, PostgreSQL 65 535."""


def open_store(
    url: str | None = None,
    *,
    read_only: bool = False,
    busy_s: float = BUSY_S,
    turns: AbstractContextManager[Any] | None = None,
) -> "SqlStore":
    """Open the store at a file or database URL; None means `autotune.db` in the working directory.

    Creates or migrates the tables when needed, unless `read_only`, which creates nothing.

    Args:
        url: a file, `sqlite:///file` or `postgresql://user@host/database`.
        read_only: for commands that only look.
        busy_s: seconds to wait for another writer before giving up.
        turns: a lock that several writers of this process share; None: there is one.

    Raises:
        StoreError: when it cannot be opened, is not a store, or was written by a newer autotune.
    """
    database = Database(locate(url), read_only=read_only, busy_s=busy_s, turns=turns)
    try:
        prepare(database)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, url)


class SqlStore:
    """A `TrialStore` in a database; see there for its methods. What it has beside is for readers.

    Args:
        database: open, with this version's tables.
        url: as `open_store` got it; queries and selections open a connection of their own with it.
    """

    def __init__(self, database: Database, url: str | None = None) -> None:
        self._database = database
        self.url = url

    def create_run(self, new: NewRun) -> RunRecord:
        """Store a new run in state `running`.

        Raises:
            UsageError: when its name is taken, or reserved for the store.
        """
        check_name(new.name)
        with self._database.writing() as session:
            _check_free(session, new)
            row = _new_row(new)
            session.add(row)
            session.flush()
            row.name = new.name or default_name(row.id)
            remember_knobs(session, new.baseline)
            return run_record(row, None, 0)

    def find_unfinished(self, key: str, name: str | None = None) -> RunRecord | None:
        """Return the running or interrupted run with this key, of this name or else the latest."""
        states = [state.value for state in UNFINISHED]
        query = _run_query().where(RunRow.key == key, RunRow.state.in_(states))
        with self._database.reading() as session:
            found = _run_records(session, query)
        return next((run for run in found if run.name == name), next(iter(found), None))

    def resume_run(self, run_id: int, *, budget_s: float, driver: str) -> RunRecord:
        """Make the run `running` under a new driver and drop its trials that were in flight."""
        with self._database.writing() as session:
            row = session.get_one(RunRow, run_id)
            row.state = RunState.RUNNING.value
            row.budget_s, row.driver = budget_s, driver
            row.finished_at = row.stop_reason = None
            session.execute(
                delete(TrialRow).where(TrialRow.run_id == run_id, TrialRow.outcome.is_(None))
            )
            session.flush()
            return _run_records(session, _run_query().where(RunRow.id == run_id))[0]

    def start_trial(
        self,
        run_id: int,
        number: int,
        plan: Plan,
        purpose: Purpose,
        reason: str,
        log_path: str,
        *,
        num_ranks: int = 1,
        promise: Promise | None = None,
    ) -> None:
        """Store a trial in flight, on `num_ranks` devices, with what is expected of it."""
        row = TrialRow(
            run_id=run_id,
            number=number,
            plan=plan.values,
            purpose=purpose.value,
            reason=reason,
            log_path=log_path,
            num_ranks=num_ranks,
            started_at=datetime.now(UTC),
            expected_throughput=promise and promise.throughput,
            chance_of_gain=promise and promise.chance,
            expected_s=promise and promise.seconds,
        )
        with self._database.writing() as session:
            session.add(row)
            remember_knobs(session, plan)

    def finish_trial(self, run_id: int, number: int, result: TrialResult, used_s: float) -> None:
        """Store how a trial ended, and the budget that the run has used by now."""
        with self._database.writing() as session:
            row = session.get_one(TrialRow, (run_id, number))
            row.finished_at = datetime.now(UTC)
            fill_result(row, result)
            if windows := window_values(run_id, number, result):
                session.execute(insert(WindowRow), windows)
            session.execute(update(RunRow).where(RunRow.id == run_id).values(used_s=used_s))

    def finish_run(
        self,
        run_id: int,
        state: RunState,
        *,
        stop_reason: str,
        used_s: float,
        winner: Winner | None,
    ) -> None:
        """Store how the run ended and what it concluded, in place of an earlier conclusion."""
        with self._database.writing() as session:
            row = session.get_one(RunRow, run_id)
            row.state, row.stop_reason, row.used_s = state.value, stop_reason, used_s
            row.finished_at = datetime.now(UTC)
            session.execute(delete(PlanRow).where(PlanRow.run_id == run_id))
            if winner is not None:
                session.add(plan_row(run_id, winner))

    def runs(self, *, limit: int | None = None, offset: int = 0) -> list[RunRecord]:
        """Return runs, newest first: all, or at most `limit` after leaving out `offset`."""
        with self._database.reading() as session:
            return _run_records(session, _run_query().limit(limit).offset(offset))

    def num_runs(self) -> int:
        """Return how many runs there are."""
        with self._database.reading() as session:
            return session.scalar(select(func.count()).select_from(RunRow)) or 0

    def outcomes(self) -> dict[str, int]:
        """Return how many trials of all runs have ended, by outcome."""
        query = (
            select(TrialRow.outcome, func.count())
            .where(TrialRow.outcome.is_not(None))
            .group_by(TrialRow.outcome)
        )
        with self._database.reading() as session:
            return {str(row[0]): row[1] for row in session.execute(query)}

    def num_trials_since(self, seconds: float) -> int:
        """Return how many trials of all runs have ended in the last `seconds`."""
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        query = select(func.count()).select_from(TrialRow).where(TrialRow.finished_at >= since)
        with self._database.reading() as session:
            return session.scalar(query) or 0

    def run(self, ref: str) -> RunRecord:
        """Return the run with this id or name, `last` for the newest.

        Raises:
            NotFoundError: when there is none, with the nearest name.
        """
        with self._database.reading() as session:
            found = _run_records(session, _run_query().where(*_matches(ref)).limit(1))
            if found:
                return found[0]
            names = session.scalars(select(RunRow.name)).all()
        raise no_such_run(ref, names, self._database.location.shown)

    def trials(self, run_id: int) -> list[TrialRecord]:
        """Return the trials of a run by number, their windows included."""
        query = select(TrialRow).where(TrialRow.run_id == run_id).order_by(TrialRow.number)
        with self._database.reading() as session:
            windows = _windows_by_trial(session, run_id)
            return [trial_record(row, windows[row.number]) for row in session.scalars(query)]

    def trial(self, run: RunRecord, number: int) -> TrialRecord:
        """Return one trial, its windows included.

        Raises:
            NotFoundError: when the run has no such trial, with the nearest number.
        """
        with self._database.reading() as session:
            row = session.get(TrialRow, (run.id, number))
            if row is not None:
                return trial_record(row, _windows(session, run.id, number))
            numbers = session.scalars(select(TrialRow.number).where(TrialRow.run_id == run.id))
            near = nearest(number, numbers)
        raise NotFoundError(
            f"run {run.name} has no trial {number}{near}; `autotune trials {run.name}` lists them"
        )

    def some_trials(self, run_id: int, numbers: Sequence[int]) -> list[TrialRecord]:
        """Return the trials of these numbers in this order, with `windows` empty.

        Numbers without a trial are left out: a run that goes on drops its trials in flight.
        """
        query = select(TrialRow).where(TrialRow.run_id == run_id)
        with self._database.reading() as session:
            rows = [
                row
                for first in range(0, len(numbers), NUMBERS_AT_ONCE)
                for row in session.scalars(
                    query.where(TrialRow.number.in_(numbers[first : first + NUMBERS_AT_ONCE]))
                )
            ]
        by_number = {row.number: trial_record(row, []) for row in rows}
        return [by_number[number] for number in numbers if number in by_number]

    def trials_for(self, run_id: int, purposes: Collection[Purpose]) -> list[TrialRecord]:
        """Return the trials with one of these purposes by number, `windows` empty."""
        names = [purpose.value for purpose in purposes]
        query = select(TrialRow.number).where(
            TrialRow.run_id == run_id, TrialRow.purpose.in_(names)
        )
        with self._database.reading() as session:
            numbers = session.scalars(query.order_by(TrialRow.number)).all()
        return self.some_trials(run_id, numbers)

    def in_flight(self, run_id: int) -> list[TrialRecord]:
        """Return the run's trials that have not ended, by number."""
        query = select(TrialRow).where(TrialRow.run_id == run_id, TrialRow.outcome.is_(None))
        with self._database.reading() as session:
            return [
                trial_record(row, []) for row in session.scalars(query.order_by(TrialRow.number))
            ]

    def statistics(self, run: RunRecord) -> RunStatistics:
        """Return the statistics of the run's trials, which the database computes."""
        return RunStatistics(self._database, run)

    @property
    def notes(self) -> Notes:
        """What people wrote of runs and trials."""
        return Notes(self._database)

    @property
    def trends(self) -> Trends:
        """What plans of workloads gave at each commit."""
        return Trends(self._database)

    @property
    def jobs(self) -> Jobs:
        """The jobs of the search service."""
        return Jobs(self._database)

    @property
    def tokens(self) -> Tokens:
        """The tokens that the search service accepts."""
        return Tokens(self._database)

    @property
    def audit(self) -> Audit:
        """Who did what to the search service."""
        return Audit(self._database)

    def lease(self, process: str, address: str) -> Lease:
        """Return the lease on the jobs, for a server of that `host:pid:start-time`."""
        return Lease(self._database, process, address)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()


def _new_row(new: NewRun) -> RunRow:
    return RunRow(
        # The default name holds the id, which the database gives.
        name=new.name or uuid4().hex,
        key=new.key,
        state=RunState.RUNNING.value,
        workload_path=new.workload_path,
        workload_hash=new.workload_hash,
        hardware=new.hardware,
        facts=new.facts,
        options=new.options,
        baseline=new.baseline.values,
        budget_s=new.budget_s,
        used_s=0.0,
        driver=new.driver,
        created_at=datetime.now(UTC),
    )


def _check_free(session: Session, new: NewRun) -> None:
    if new.name is None:
        return
    taken = session.scalar(select(RunRow).where(RunRow.name == new.name))
    if taken is not None:
        raise name_taken(new, run_id=taken.id, key=taken.key, state=RunState(taken.state))


def _run_query() -> "Select[RunRow, PlanRow | None, int]":
    count = (
        select(func.count())
        .select_from(TrialRow)
        .where(TrialRow.run_id == RunRow.id)
        .scalar_subquery()
    )
    query = select(RunRow, PlanRow, count).outerjoin(PlanRow, PlanRow.run_id == RunRow.id)
    return query.order_by(RunRow.id.desc())


def _run_records(
    session: Session, query: "Select[RunRow, PlanRow | None, int]"
) -> list[RunRecord]:
    return [run_record(row, winner, count) for row, winner, count in session.execute(query)]


def _matches(ref: str) -> list[ColumnElement[bool]]:
    if ref == "last":
        return []
    return [RunRow.id == int(ref)] if ref.isdecimal() else [RunRow.name == ref]


def _windows(session: Session, run_id: int, number: int) -> list[WindowRow]:
    query = select(WindowRow).where(WindowRow.run_id == run_id, WindowRow.number == number)
    return list(session.scalars(query.order_by(WindowRow.position)))


def _windows_by_trial(session: Session, run_id: int) -> dict[int, list[WindowRow]]:
    query = select(WindowRow).where(WindowRow.run_id == run_id)
    grouped: dict[int, list[WindowRow]] = defaultdict(list)
    for row in session.scalars(query.order_by(WindowRow.number, WindowRow.position)):
        grouped[row.number].append(row)
    return grouped
