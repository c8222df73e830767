"""Which server is in charge of a store's jobs: one at a time.

The server in charge counts its `beats` up. Another one that starts on the same machine sees
whether that server's process lives; on another machine it waits to see whether the beats go on.
So no two machines' clocks are compared.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autotune.storage.database import Database
from autotune.storage.driver import lives
from autotune.storage.tables import ServerRow

SCHEDULER = "scheduler"
"""The role of the server that starts jobs; a store has one of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The server that holds the lease.

    Attributes:
        process: its `host:pid:start-time`.
        address: where it listens.
        beats: how often it has said that it lives.
    """

    process: str
    address: str
    beats: int

    @property
    def lives(self) -> bool | None:
        """Whether its process lives; None where that is on another machine."""
        return lives(self.process)


class Lease:
    """The lease on a store's jobs. Not thread-safe.

    Args:
        database: open for writing.
        process: `host:pid:start-time` of this server.
        address: where this server listens.
    """

    def __init__(self, database: Database, process: str, address: str) -> None:
        self._database = database
        self._process = process
        self._address = address

    def take(self, seen: Holder | None = None) -> Holder | None:
        """Take the lease; return None, or who holds it in place of this server.

        It is free where nobody holds it, where its holder's process is seen to be gone, and where
        the holder is still exactly `seen`, which the caller has watched for long enough.
        """
        try:
            with self._database.writing() as session:
                return self._take(session, seen)
        except IntegrityError:  # PostgreSQL lets two servers find it free at the same moment
            return self.take(seen)

    def _take(self, session: Session, seen: Holder | None) -> Holder | None:
        row = session.get(ServerRow, SCHEDULER, with_for_update=True)
        if row is not None:
            holder = Holder(process=row.process, address=row.address, beats=row.beats)
            if holder.lives is not False and holder != seen:
                return holder
            session.delete(row)
            session.flush()
        self._insert(session)
        session.flush()
        return None

    def beat(self) -> bool:
        """Say that this server lives; False where it holds the lease no more."""
        change = update(ServerRow).where(ServerRow.process == self._process)
        with self._database.writing() as session:
            changed = session.execute(change.values(beats=ServerRow.beats + 1))
            return changed.rowcount == 1  # type: ignore[attr-defined, no-any-return]  # of an UPDATE it has one

    def give_back(self) -> None:
        """Let another server take the lease at once."""
        with self._database.writing() as session:
            session.execute(delete(ServerRow).where(ServerRow.process == self._process))

    def _insert(self, session: Session) -> None:
        session.add(
            ServerRow(
                role=SCHEDULER,
                process=self._process,
                address=self._address,
                beats=0,
                started_at=datetime.now(UTC),
            )
        )
