"""Database errors in words: what happened to the store, and what the user can do about it."""

import os
from pathlib import Path

from sqlalchemy.exc import DBAPIError, OperationalError

from autotune.errors import StoreError
from autotune.storage.location import Location, is_there

SQLITE = {  # by the names of SQLite's result codes; the words follow "the store PATH"
    "SQLITE_BUSY": "is locked by another process that writes to it; wait for that run to end, or "
    "use another file with --storage",
    "SQLITE_LOCKED": "is locked by another process that writes to it; wait for that run to end, "
    "or use another file with --storage",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space and type the same command "
    "again, finished trials are kept",
    "SQLITE_IOERR": "cannot be read or written by the disk: it may be full (see `df`), "
    "read-only, over its quota or failing; finished trials are kept",
    "SQLITE_READONLY": "is read-only: you may not write to the file or to its folder; change "
    "their permissions, or use another file with --storage",
    "SQLITE_NOTADB": "is not an SQLite database; check --storage, or move the file away",
    "SQLITE_CORRUPT": "is damaged, as after an incomplete copy; restore it from a copy, or save "
    "what can be read with `sqlite3 FILE .recover`",
    "SQLITE_PERM": "may not be accessed; change its permissions or use another --storage",
}

POSTGRES = {  # by the first digits of the SQLSTATE; the words follow "the store URL"
    "28": "refuses this user or password; check the URL, or set PGPASSWORD",
    "3D": "does not exist on the server; create it with `createdb`",
    "42501": "does not let this user do that; grant it rights on the database, or use another "
    "user in --storage",
    "25006": "is read-only, as a standby is; use the primary server in --storage",
    "53100": "cannot grow: the server's disk is full; free some space and type the same command "
    "again, finished trials are kept",
    "53300": "has no connection left; close some clients, or raise max_connections",
    "55P03": "is locked by another process; wait for it to end and try again",
    "57": "was shut down or interrupted by its administrator; try again when it is back",
}


def explain(error: DBAPIError, location: Location) -> StoreError | None:
    """Return a database error in words, None for one that only a bug of autotune can cause."""
    path = location.path
    words = _postgres(error) if path is None else _sqlite(error, path)
    return None if words is None else StoreError(f"the store {location.shown} {words}")


def _sqlite(error: DBAPIError, path: Path) -> str | None:
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_CANTOPEN"):
        return _cannot_open(path)
    # Extended names such as SQLITE_IOERR_WRITE begin with the plain one.
    return next((f"{SQLITE[n]} ({error.orig})" for n in SQLITE if name.startswith(n)), None)


def _cannot_open(path: Path) -> str:
    folder = path.absolute().parent
    if not is_there(folder):
        return (
            f"cannot be created: there is no folder {folder}; create it with `mkdir -p {folder}`"
        )
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return f"cannot be opened: it is a folder; name a file in it, such as {path}/autotune.db"
    return (
        f"cannot be opened: you may not read or write it, or its folder {folder}; change their "
        "permissions, or use another file with --storage"
    )


def _postgres(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None) or ""
    for prefix, words in POSTGRES.items():
        if state.startswith(prefix):
            return f"{words} ({error.orig})"
    if isinstance(error, OperationalError):
        return f"cannot be used; check the URL and that the server runs ({error.orig})"
    return None
