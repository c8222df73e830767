"""SQL of the user's own, run on a connection that can only read."""

import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import UsageError
from autotune.storage.database import Database
from autotune.storage.location import locate
from autotune.storage.schema import prepare

SCHEMA_HINT = (
    "the tables are runs, trials, windows and plans, and trials_wide has a column per knob: "
    '`autotune query "SELECT * FROM trials_wide LIMIT 1"` shows them'
)
MAX_VALUE_BYTES = 10_000_000
"""Largest text or blob that SQLite may make for a query."""
STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's virtual machine between two looks at the clock."""

READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
"""The actions that SQLite may take for a query; writing, ATTACH and PRAGMA are not among them."""


OUTSIDE = ("fts", "load_extension", "readfile", "writefile", "edit", "sqlite_", "zipfile", "rtree")
"""Begin the names of SQLite's functions that look at, or change, more than tables: files,
extensions, addresses in memory (`fts3_tokenizer`), how the library was built."""
OUTSIDE_TABLES = ("pragma_", "sqlite_dbpage", "sqlite_stmt", "dbstat", "fsdir")
"""Begin the names of SQLite's built-in tables that show the file or the library."""

FLAGS = frozenset({"user_error", "peer_lost", "settled", "raced", "kept_baseline", "confirmed"})
"""Columns of the tables that hold true or false; SQLite keeps 1 and 0 for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The rows of a query; `truncated` when there were more than its limit.

    Columns of knobs and flags that are true or false hold booleans, whatever the database.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool


def read_only_query(
    url: str | None, sql: str, *, timeout_s: float = 10.0, max_rows: int = 10_000
) -> QueryResult:
    """Run one statement that only reads.

    The database itself refuses to write, to run a second statement, and to go on after
    `timeout_s`; the text of the statement is not searched for forbidden words.

    Args:
        url: as for `open_store`; None means `autotune.db` in the working directory.
        sql: one SELECT statement in the database's own dialect.
        timeout_s: seconds until the database stops.
        max_rows: rows after which the result is cut.

    Raises:
        UsageError: when the database refuses the statement or stops it.
        StoreError: when the store cannot be opened.
    """
    database = Database(locate(url), read_only=True)
    try:
        prepare(database)
        with database.raw() as connection:
            run = _sqlite if isinstance(connection, sqlite3.Connection) else _postgres
            columns, rows = run(connection, sql, timeout_s, max_rows + 1)
    finally:
        database.close()
    return QueryResult(columns=columns, rows=rows[:max_rows], truncated=len(rows) > max_rows)


def _sqlite(
    connection: sqlite3.Connection, sql: str, timeout_s: float, num_rows: int
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    deadline = time.monotonic() + timeout_s
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CHECKS)
    flags = FLAGS | _boolean_knobs(connection)
    connection.set_authorizer(_authorize)
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(num_rows)
    except (sqlite3.Error, sqlite3.Warning) as error:
        interrupted = getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT"
        raise _refused(str(error), timeout_s if interrupted else None) from error
    if cursor.description is None:
        raise _refused("there is no statement", None)
    names = _names(cursor.description)
    return names, _with_booleans(names, rows, flags)


def _boolean_knobs(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the names of the knobs whose values are all true or false."""
    sql = "SELECT name FROM knobs GROUP BY name HAVING max(kind) = 'boolean' AND count(*) = 1"
    return frozenset(name for (name,) in connection.execute(sql))


def _with_booleans(
    names: Sequence[str], rows: list[tuple[Any, ...]], flags: Collection[str]
) -> list[tuple[Any, ...]]:
    """Return the rows with booleans in the columns of these names that hold only 0 and 1."""
    places = {
        place
        for place, name in enumerate(names)
        if name in flags and all(row[place] in {0, 1, None} for row in rows)
    }
    if not places:
        return rows
    return [
        tuple(
            bool(value) if place in places and value is not None else value
            for place, value in enumerate(row)
        )
        for row in rows
    ]


def _authorize(action: int, *names: str | None) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        is_outside = str(names[1]).lower().startswith(OUTSIDE)
    else:
        is_outside = action == sqlite3.SQLITE_READ and str(names[0]).startswith(OUTSIDE_TABLES)
    allowed = action in READING and not is_outside
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _postgres(
    connection: Any, sql: str, timeout_s: float, num_rows: int
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Run the statement as a cursor's in a read-only transaction, so that it must be a SELECT."""
    import psycopg  # noqa: PLC0415 - an extra that SQLite users do not install

    connection.read_only = True
    try:
        milliseconds = str(max(1, int(timeout_s * 1000)))
        connection.execute("SELECT set_config('statement_timeout', %s, true)", [milliseconds])
        with connection.cursor("autotune_query") as cursor:
            cursor.execute(sql)
            rows = cursor.fetchmany(num_rows)
            columns = _names(cursor.description)
    except psycopg.Error as error:
        canceled = isinstance(error, psycopg.errors.QueryCanceled)
        message = error.diag.message_primary or str(error)
        raise _refused(message, timeout_s if canceled else None) from error
    finally:
        connection.rollback()
    return columns, rows


def _names(description: Sequence[Sequence[Any]] | None) -> tuple[str, ...]:
    return tuple(str(column[0]) for column in description or ())


def _refused(message: str, timeout_s: float | None) -> UsageError:
    if timeout_s is not None:
        return UsageError(
            f"the query was stopped after {timeout_s:g} s, the limit; ask for fewer rows, with "
            "WHERE run_id = ... for example"
        )
    return UsageError(
        f"the database refused the query: {message.strip(' .')}. It takes one statement that only "
        f"reads; {SCHEMA_HINT}"
    )
