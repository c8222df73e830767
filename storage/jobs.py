"""The queue of the search service: its jobs, and what happened to them."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import uuid4

from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autotune.errors import NotFoundError
from autotune.storage.access import audit_row
from autotune.storage.database import Database
from autotune.storage.job_records import JobEvent, JobRecord, JobState, NewJob
from autotune.storage.tables import JobEventRow, JobRow, RunRow

UNFINISHED_JOBS = (JobState.QUEUED, JobState.RUNNING)


class Jobs:
    """The jobs of a store. Every method is one transaction; not thread-safe.

    What people do is kept in the audit by the same transaction.

    Args:
        database: open; for reading alone where nothing is to be changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: NewJob) -> JobRecord:
        """Queue a job, and return it; one whose key is known already is returned as it is."""
        try:
            with self._database.writing() as session:
                return _add(session, new)
        except IntegrityError:  # PostgreSQL lets two requests find the key unknown at one moment
            with self._database.reading() as session:
                return _records(session, _query().where(JobRow.key == new.key))[0]

    def find(self, key: str) -> JobRecord | None:
        """Return the job with this key; None where there is none."""
        with self._database.reading() as session:
            return next(iter(_records(session, _query().where(JobRow.key == key))), None)

    def job(self, ref: str) -> JobRecord:
        """Return the job with this number or `job-<number>`, `last` for the newest.

        Raises:
            NotFoundError: when there is none.
        """
        with self._database.reading() as session:
            job_id = _id_of(session, ref)
            found = (
                [] if job_id is None else _records(session, _query().where(JobRow.id == job_id))
            )
        if not found:
            raise NotFoundError(f"there is no job {ref!r}; `autotune jobs` lists all")
        return found[0]

    def jobs(
        self,
        *,
        states: Collection[JobState] = tuple(JobState),
        limit: int | None = None,
        offset: int = 0,
    ) -> list[JobRecord]:
        """Return the jobs in these states (by default in any), newest first."""
        named = [state.value for state in states]
        query = _query().where(JobRow.state.in_(named)).order_by(JobRow.id.desc())
        with self._database.reading() as session:
            return _records(session, query.limit(limit).offset(offset))

    def counts(self) -> dict[JobState, int]:
        """Return how many jobs there are in each state."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self._database.reading() as session:
            found = {row[0]: row[1] for row in session.execute(query)}
        return {state: found.get(state.value, 0) for state in JobState}

    def claim(self, job_id: int, devices: Sequence[str], server: str) -> bool:
        """Make a queued job `running` on these devices; False where it is not queued any more."""
        change = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.state == JobState.QUEUED.value)
            .values(
                state=JobState.RUNNING.value,
                devices=list(devices),
                server=server,
                process=None,
                started_at=datetime.now(UTC),
                num_starts=JobRow.num_starts + 1,
            )
        )
        with self._database.writing() as session:
            is_claimed: bool = session.execute(change).rowcount == 1  # type: ignore[attr-defined]  # of an UPDATE it has one
            if is_claimed:
                where = f"on {', '.join(devices)}" if devices else "on the cluster"
                _note(session, job_id, JobState.RUNNING.value, f"started {where}")
            return is_claimed

    def set_process(self, job_id: int, process: str) -> None:
        """Keep which process watches over a running job."""
        with self._database.writing() as session:
            session.get_one(JobRow, job_id).process = process

    def queue_again(self, job_id: int, why: str) -> None:
        """Make a running job whose processes are gone `queued`; it keeps its place by age."""
        with self._database.writing() as session:
            row = session.get_one(JobRow, job_id)
            row.state, row.devices, row.process = JobState.QUEUED.value, [], None
            _note(session, job_id, JobState.QUEUED.value, why)

    def finish(self, job_id: int, state: JobState, *, exit_code: int | None, message: str) -> None:
        """Store how a job ended."""
        with self._database.writing() as session:
            row = session.get_one(JobRow, job_id)
            row.state, row.exit_code, row.message = state.value, exit_code, message
            row.finished_at = datetime.now(UTC)
            _note(session, job_id, state.value, message)

    def cancel(self, job_id: int, who: str) -> JobRecord:
        """Ask for the end of a job: a queued one is `cancelled` now, a running one is stopped.

        One that has ended stays as it is.
        """
        with self._database.writing() as session:
            row = session.get_one(JobRow, job_id, with_for_update=True)
            if JobState(row.state) in UNFINISHED_JOBS and row.cancelled_by is None:
                row.cancelled_by, row.cancelled_at = who, datetime.now(UTC)
                if row.state == JobState.QUEUED.value:
                    row.state, row.finished_at = JobState.CANCELLED.value, datetime.now(UTC)
                    row.message = f"cancelled by {who} while it waited"
                    _note(session, job_id, JobState.CANCELLED.value, row.message)
                else:
                    _note(session, job_id, "stopping", f"{who} asked to stop it")
            session.add(audit_row(who, "cancel", row.run_name))
            session.flush()
            return _one(session, job_id)

    def note(self, job_id: int, kind: str, text: str) -> None:
        """Add an event to a job."""
        with self._database.writing() as session:
            _note(session, job_id, kind, text)

    def events(self, job_id: int, after: int = 0) -> list[JobEvent]:
        """Return what happened to a job, in order, after the event with id `after`."""
        query = select(JobEventRow).where(JobEventRow.job_id == job_id, JobEventRow.id > after)
        with self._database.reading() as session:
            return [
                JobEvent(id=row.id, at=row.at, kind=row.kind, text=row.text)
                for row in session.scalars(query.order_by(JobEventRow.id))
            ]


def _add(session: Session, new: NewJob) -> JobRecord:
    known = session.scalar(select(JobRow.id).where(JobRow.key == new.key))
    if known is not None:
        return _one(session, known)
    row = _new_row(new)
    session.add(row)
    session.flush()
    row.run_name = f"job-{row.id}"
    _note(session, row.id, JobState.QUEUED.value, f"queued by {new.owner}")
    session.add(audit_row(new.owner, "submit", row.run_name))
    session.flush()
    return _one(session, row.id)


def _new_row(new: NewJob) -> JobRow:
    return JobRow(
        key=new.key,
        run_name=str(uuid4()),  # replaced as soon as the id is known
        name=new.name,
        owner=new.owner,
        state=JobState.QUEUED.value,
        priority=new.priority,
        num_devices=new.num_devices,
        budget_s=new.budget_s,
        request=new.request,
        devices=[],
        num_starts=0,
        created_at=datetime.now(UTC),
    )


def _note(session: Session, job_id: int, kind: str, text: str) -> None:
    session.add(JobEventRow(job_id=job_id, at=datetime.now(UTC), kind=kind, text=text))


def _id_of(session: Session, ref: str) -> int | None:
    if ref == "last":
        return session.scalar(select(func.max(JobRow.id)))
    digits = ref.removeprefix("job-")
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _query() -> "Select[JobRow, int | None]":
    return select(JobRow, RunRow.id).outerjoin(RunRow, RunRow.name == JobRow.run_name)


def _one(session: Session, job_id: int) -> JobRecord:
    return _records(session, _query().where(JobRow.id == job_id))[0]


def _records(session: Session, query: "Select[JobRow, int | None]") -> list[JobRecord]:
    return [_record(found) for found in session.execute(query)]


def _record(found: "Row[JobRow, int | None]") -> JobRecord:
    row, run_id = found
    return JobRecord(
        id=row.id,
        new=NewJob(
            key=row.key,
            name=row.name,
            owner=row.owner,
            priority=row.priority,
            num_devices=row.num_devices,
            budget_s=row.budget_s,
            request=row.request,
        ),
        state=JobState(row.state),
        run_name=row.run_name,
        run_id=run_id,
        devices=tuple(row.devices),
        server=row.server,
        process=row.process,
        num_starts=row.num_starts,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        cancelled_by=row.cancelled_by,
        cancelled_at=row.cancelled_at,
        exit_code=row.exit_code,
        message=row.message,
    )
