"""SQL of the user's own, run on a connection that can only read."""

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
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

_FUNCTIONS = (
    # https://sqlite.org/lang_corefunc.html
    "abs changes char coalesce concat concat_ws format glob hex if ifnull iif instr length like "
    "likelihood likely lower ltrim max min nullif octet_length printf quote random randomblob "
    "replace round rtrim sign soundex sqlite_version substr substring trim typeof unhex unicode "
    "unistr unistr_quote unlikely upper zeroblob "
    # https://sqlite.org/lang_datefunc.html
    "current_date current_time current_timestamp date datetime julianday strftime time timediff "
    "unixepoch "
    # https://sqlite.org/lang_aggfunc.html and https://sqlite.org/percentile.html
    "avg count group_concat median percentile percentile_cont percentile_disc string_agg sum "
    "total "
    # https://sqlite.org/windowfunctions.html
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank "
    "row_number "
    # https://sqlite.org/lang_mathfunc.html
    "acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 "
    "log2 mod pi pow power radians sin sinh sqrt tan tanh trunc "
    # https://sqlite.org/json1.html
    "-> ->> json json_array json_array_insert json_array_length json_error_position json_extract "
    "json_group_array json_group_object json_insert json_object json_patch json_pretty json_quote "
    "json_remove json_replace json_set json_type json_valid jsonb jsonb_array jsonb_extract "
    "jsonb_group_array jsonb_group_object jsonb_insert jsonb_object jsonb_patch jsonb_remove "
    "jsonb_replace jsonb_set"
)
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""The functions that compute from their arguments alone. Others, such as those of full-text
search, give addresses in memory, load libraries or write to logs."""

TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
"""The modules of SQLite that a query may read as tables; others show files and statements."""

OF_SERVICE = frozenset({"jobs", "job_events", "tokens", "audit", "servers"})
"""The tables of the search service, which SQLite does not show to queries: who may look at runs
need not see who may do what. PostgreSQL has roles for that."""

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
    connection.set_authorizer(_authorizer(connection))
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


def _authorizer(connection: sqlite3.Connection) -> Callable[..., int]:
    modules = {str(name) for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
    closed = (modules - TABLE_FUNCTIONS) | OF_SERVICE
    # SQLite declares a module as a table when it is first read, which a query may not.
    connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = action in READING
        if action == sqlite3.SQLITE_FUNCTION:
            allowed = str(second).lower() in FUNCTIONS
        if action == sqlite3.SQLITE_READ:
            allowed = str(first).lower() not in closed
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


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
