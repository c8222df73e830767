"""An open database: its transactions, and its errors in words that say what to do."""

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from autotune.errors import StoreError
from autotune.storage.failures import explain
from autotune.storage.location import Location, is_there

BUSY_S = 30.0
"""Seconds to wait for another process that writes, before giving up."""
BUSY_POLL_S = 0.01
"""Seconds between two tries to turn a new file to write-ahead logging."""
CONNECT_TIMEOUT_S = 10
"""Seconds to wait for a PostgreSQL server."""


class Database:
    """One database and the transactions on it. Not thread-safe.

    Args:
        location: where it is.
        read_only: nothing may be written, and nothing is created.
        busy_s: seconds to wait for another writer.
        turns: a lock that the writers of one process share; None: there is one writer. SQLite
            itself lets writers wait without an order, and for as long as others come.

    Raises:
        StoreError: when the file is missing and `read_only`, or the driver is not installed.
    """

    def __init__(
        self,
        location: Location,
        *,
        read_only: bool = False,
        busy_s: float = BUSY_S,
        turns: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.location = location
        self._turns = turns or nullcontext()
        self.read_only = read_only
        if read_only and location.path is not None and not is_there(location.path):
            raise StoreError(
                f"there is no store {location.shown}; `autotune run MODEL` creates one, or name "
                "another with --storage"
            )
        engine = _create_engine(location, read_only=read_only, busy_s=busy_s)
        # The file that was opened: its device and its number there.
        self._opened: tuple[int, int] | None = None
        event.listen(engine, "connect", self._note_file)
        self._reading = engine.execution_options(postgresql_readonly=True)
        self._writing = engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Run the block in one transaction that writes nothing."""
        with self._transaction(self._reading) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Run the block in one transaction: all of it is on disk at its end, or nothing is.

        Raises:
            StoreError: when the file at its path is not the one that was opened, and written to.
        """
        with self._turns, self._transaction(self._writing) as session:
            yield session
        self._check_file()

    @contextmanager
    def raw(self) -> Iterator[Any]:
        """Give the connection of sqlite3 or psycopg itself, with no transaction begun."""
        with self.explained():
            connection = self._reading.raw_connection()
            try:
                yield connection.driver_connection
            finally:
                connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the block's database errors into StoreErrors that say what to do."""
        try:
            yield
        except DBAPIError as error:
            known = explain(error, self.location)
            if known is None:
                raise
            raise known from error

    def close(self) -> None:
        """Close the connections."""
        self._reading.dispose()

    def _note_file(self, connection: object, record: object) -> None:
        if self.location.path is not None:
            self._opened = _file_number(self.location.path)

    def _check_file(self) -> None:
        path = self.location.path
        if path is not None and _file_number(path) != self._opened:
            happened = "replaced by another file" if is_there(path) else "removed or moved"
            raise StoreError(
                f"the store {self.location.shown} was {happened} while it was written to, so what "
                "is written now is not kept; leave the file where it is while a run goes on"
            )

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Session]:
        with self.explained(), Session(engine, expire_on_commit=False) as session, session.begin():
            yield session


def _create_engine(location: Location, *, read_only: bool, busy_s: float) -> Engine:
    if location.path is not None:
        return _sqlite_engine(location.path, read_only=read_only, busy_s=busy_s)
    try:
        return create_engine(
            location.url,
            # A run outlives a restart of the server between two trials.
            pool_pre_ping=True,
            json_serializer=dump_json,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "autotune"},
        )
    except ImportError as error:
        raise StoreError(
            f"the store {location.shown} needs the PostgreSQL driver, which is not installed; "
            "run: pip install 'torch-autotune[postgres]'"
        ) from error


def _file_number(path: Path) -> tuple[int, int] | None:
    """Return the device of a file and its number there, None where there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _sqlite_engine(path: Path, *, read_only: bool, busy_s: float) -> Engine:
    def connect() -> sqlite3.Connection:
        return _connect_sqlite(path, read_only=read_only, busy_s=busy_s)

    engine = create_engine("sqlite://", creator=connect, json_serializer=dump_json)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _connect_sqlite(path: Path, *, read_only: bool, busy_s: float) -> sqlite3.Connection:
    mode = _read_mode(path) if read_only else "mode=rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    else:
        _use_wal(connection, busy_s)
        # FULL syncs each commit: a trial took seconds, so it may survive a power cut as well.
        connection.execute("PRAGMA synchronous = FULL")
    return connection


def _use_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    # Where two processes turn one new file to WAL, SQLite fails at once instead of waiting.
    give_up = time.monotonic() + busy_s
    while not _turned_to_wal(connection, fail=time.monotonic() >= give_up):
        time.sleep(BUSY_POLL_S)


def _turned_to_wal(connection: sqlite3.Connection, *, fail: bool) -> bool:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or fail:
            raise
        return False
    return True


def _read_mode(path: Path) -> str:
    # Readers of a WAL database create its -shm file; in a read-only folder that is impossible,
    # and with no -wal file beside it nothing is missing in the main file.
    wal = path.with_name(path.name + "-wal")
    sealed = not os.access(path.absolute().parent, os.W_OK) and not is_there(wal)
    return "mode=ro&immutable=1" if sealed else "mode=ro"


def _begin_sqlite(connection: Connection) -> None:
    # The driver begins nothing by itself here: it would not for DDL, and only deferred for the
    # rest, where a reader that turns writer can fail at once with SQLITE_BUSY.
    begin = connection.get_execution_options().get("sqlite_begin", "BEGIN")
    connection.exec_driver_sql(begin)


def dump_json(value: Any) -> str:
    """Return strict JSON: NaN and infinities become null."""
    return json.dumps(strict(value), allow_nan=False)


def strict(value: Any) -> Any:
    """Return the value with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
