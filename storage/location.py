"""The values of `--storage`: how they are read, and shown again without the password."""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from autotune.errors import StoreError

DEFAULT_FILE = "autotune.db"
FORMS = "a file such as autotune.db, sqlite:///autotune.db or postgresql://user@host/database"
"""The forms of `--storage` values, for messages."""
POSTGRES_NAMES = ("postgresql", "postgres", "postgresql+psycopg")
SECRETS = ("password", "sslpassword")
"""Parameters of a URL that are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The database that a `--storage` value names.

    Attributes:
        url: for SQLAlchemy; it names a driver.
        path: the file, for SQLite; None for a server.
        shown: for messages; holds no password.
    """

    url: URL
    path: Path | None
    shown: str

    @property
    def password(self) -> str | None:
        """The password in the URL; None where there is none."""
        told = self.url.password or self.url.query.get("password")
        return None if told is None else str(told)

    @property
    def without_password(self) -> str:
        """The value of `--storage` for the same database, without a password."""
        if self.path is not None:
            return str(self.path.absolute())
        url = URL.create(
            "postgresql",
            username=self.url.username,
            host=self.url.host,
            port=self.url.port,
            database=self.url.database,
            query=self.url.query,
        )
        return url.difference_update_query(["password"]).render_as_string(hide_password=False)


def locate(text: str | None) -> Location:
    """Read a `--storage` value: a file, a database URL, or None for `autotune.db` here.

    Raises:
        StoreError: when it is neither, or names a database that autotune does not speak.
    """
    if text is None or "://" not in text:
        return _file(Path(text or DEFAULT_FILE).expanduser())
    url = _parse(text)
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StoreError(f"--storage {text!r} names no file; use {FORMS}")
        return _file(Path(url.database))
    if url.drivername not in POSTGRES_NAMES:
        raise StoreError(
            f"--storage names the database {url.drivername!r}; autotune keeps its store in "
            f"SQLite or PostgreSQL: {FORMS}"
        )
    return Location(url=url.set(drivername="postgresql+psycopg"), path=None, shown=_public(url))


def is_there(path: Path) -> bool:
    """Return whether a path exists; True, too, where the rights to look are missing."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True


def _file(path: Path) -> Location:
    return Location(url=URL.create("sqlite", database=str(path)), path=path, shown=str(path))


def _parse(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError) as error:
        shown = re.sub(r"://.*@", "://***@", text)
        raise StoreError(f"--storage {shown!r} is not a database URL; use {FORMS}") from error


def _public(url: URL) -> str:
    hidden = {key: "***" for key in url.query if key in SECRETS}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
