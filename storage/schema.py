"""The revision of a database's tables, and its migration to the one of this version."""

from pathlib import Path

from sqlalchemy import Connection, column, func, inspect, select, table
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import StoreError
from autotune.storage import wide
from autotune.storage.database import Database

VERSION_TABLE = "autotune_alembic_version"
MIGRATIONS = Path(__file__).parent / "migrations"
REVISIONS = tuple(f"{number:04}" for number in range(1, 15))
"""All revisions, oldest first. They are listed here as importing Alembic takes a while."""

TABLES = frozenset(
    {"runs", "trials", "windows", "plans", "knobs", "notes", "trend_points"}
    | {"jobs", "job_events", "tokens", "audit", "servers"}
)
"""The names that a database must not have before autotune's tables are made in it."""

ADVISORY_LOCK = 0x6175746F74756E65
"""PostgreSQL's key of the lock that migrations hold: the letters "autotune"."""


def prepare(database: Database) -> None:
    """Check that the database has this version's tables; migrate it where it is older.

    A file is migrated for reading, too: who updates autotune sees their runs. A database that a
    team shares is left to those who write to it.

    Raises:
        StoreError: when it is newer; when it is to be read and is no store, or an older one that
            cannot be migrated.
    """
    with database.reading() as session:
        current = revision(session.connection())
    if current == REVISIONS[-1]:
        return
    _check_known(current, database)
    if not database.read_only:
        _migrate(database)
    elif current is None or not _is_migrated_file(database):
        raise StoreError(_unreadable(current, database))


def revision(connection: Connection) -> str | None:
    """Return the database's revision, None where autotune has no tables in it."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    current: str | None = connection.scalar(
        select(column("version_num")).select_from(table(VERSION_TABLE))
    )
    return current


def _check_known(current: str | None, database: Database) -> None:
    if current is not None and current not in REVISIONS:
        raise StoreError(
            f"the store {database.location.shown} was written by a newer autotune (revision "
            f"{current}, this version knows up to {REVISIONS[-1]}); upgrade with "
            "`pip install --upgrade torch-autotune`, or use another --storage"
        )


def _unreadable(current: str | None, database: Database) -> str:
    shown = database.location.shown
    if current is None:
        return (
            f"{shown} holds no autotune store; `autotune run MODEL` creates one, or name another "
            "with --storage"
        )
    return (
        f"the store {shown} was written by an older autotune (revision {current}, this version "
        f"needs {REVISIONS[-1]}); `autotune run` on it once brings it up to date"
    )


def _is_migrated_file(database: Database) -> bool:
    """Migrate a file that is to be read, over a connection of its own; return whether it went."""
    if database.location.path is None:
        return False
    try:
        writable = Database(database.location)
        try:
            _migrate(writable)
        finally:
            writable.close()
    except (StoreError, SQLAlchemyError):
        return False
    return True


def _migrate(database: Database) -> None:
    """Migrate in one transaction that holds a lock, as another process may begin to, too."""
    with database.writing() as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        current = revision(connection)
        _check_known(current, database)
        if current is None:
            _check_free(connection, database)
        if current != REVISIONS[-1]:
            wide.drop_view(connection)
            upgrade(connection, REVISIONS[-1])
            wide.create_view(session)


def _check_free(connection: Connection, database: Database) -> None:
    taken = TABLES & set(inspect(connection).get_table_names())
    if taken:
        raise StoreError(
            f"{database.location.shown} already has a table {min(taken)!r} of another program; "
            "give autotune a database of its own with --storage"
        )


def upgrade(connection: Connection, target: str) -> None:
    """Run the migrations up to revision `target` inside the connection's transaction."""
    from alembic import command  # noqa: PLC0415 - only a new or old store needs it
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    command.upgrade(config, target)
