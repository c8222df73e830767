"""Stores for tests. Their tables are made once: copied for each test, or emptied before it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from autotune.storage import wide
from autotune.storage.database import Database
from autotune.storage.location import locate
from autotune.storage.records import NewRun
from autotune.storage.sql import SqlStore, open_store
from autotune.storage.tables import Base
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.result import Measurement
from tests.conftest import new_schema


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    """A new store in each database."""
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a store's tables and nothing in them."""
    file = tmp_path_factory.mktemp("template") / "autotune.db"
    open_store(str(file)).close()
    return file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a file with an empty store."""
    shutil.copy(sqlite_template, tmp_path / "autotune.db")
    return f"sqlite:///{tmp_path}/autotune.db"


@pytest.fixture(scope="session")
def postgres_store_url(postgres_folder: Path) -> str:
    """The URL of a store that tests use one after the other."""
    url = new_schema(postgres_folder)
    open_store(url).close()
    return url


@pytest.fixture
def postgres_url(postgres_store_url: str) -> str:
    """The URL of an empty store."""
    database = Database(locate(postgres_store_url))
    with closing(database), database.writing() as session:
        session.execute(text(f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY"))
        wide.drop_view(session.connection())
        wide.create_view(session)
    return postgres_store_url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that holds nothing, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return new_schema(request.getfixturevalue("postgres_folder"))


@pytest.fixture
def new_run() -> Callable[..., NewRun]:
    """Make a run that is about to start; keywords change its fields."""
    return make_run


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """Make a measurement of a throughput; keywords change its fields."""
    return make_measurement
