"""Notes and tags that people give to runs and trials."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from autotune.storage.database import Database
from autotune.storage.tables import NoteRow

WHOLE_RUN = 0
"""Stands for the run itself where the number of a trial would stand; trials begin at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What people wrote of a run or a trial; empty where nobody did."""

    text: str = ""
    tags: tuple[str, ...] = ()


class Notes:
    """The notes of a store.

    Args:
        database: open; for reading alone where nothing is to be kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, run_id: int, number: int = WHOLE_RUN) -> Note:
        """Return the note on a run or on one of its trials."""
        with self._database.reading() as session:
            row = session.get(NoteRow, (run_id, number))
            return Note() if row is None else _note(row)

    def of_runs(self, run_ids: Collection[int]) -> dict[int, Note]:
        """Return {run: note} for those of these runs that have one."""
        query = select(NoteRow).where(NoteRow.number == WHOLE_RUN, NoteRow.run_id.in_(run_ids))
        with self._database.reading() as session:
            return {row.run_id: _note(row) for row in session.scalars(query)}

    def keep(self, note: Note, run_id: int, number: int = WHOLE_RUN) -> None:
        """Store a note in place of an older one; an empty note removes it."""
        with self._database.writing() as session:
            row = session.get(NoteRow, (run_id, number))
            if row is not None:
                session.delete(row)
                session.flush()
            if note != Note():
                session.add(
                    NoteRow(
                        run_id=run_id,
                        number=number,
                        text=note.text,
                        tags=list(note.tags),
                        changed_at=datetime.now(UTC),
                    )
                )


def _note(row: NoteRow) -> Note:
    return Note(text=row.text, tags=tuple(str(tag) for tag in row.tags))
