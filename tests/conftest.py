"""What tests of several folders share: commands, and real databases."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from autotune.cli.main import run_command_line
from autotune.dispatch import clusters
from autotune.dispatch.fork_client import LATER_IMPORTS, TRIAL_IMPORTS, ForkServerProcess
from autotune.dispatch.run_resources import RunResources
from autotune.storage.sql import open_store
from tests.brief_trials import brief_trials
from tests.browser import browser, keep, open_page  # noqa: F401  fixtures of all tests

SCHEMAS = count(1)
TESTS = Path(__file__).parent
# Their files take longest. Begun first, they leave short files for the end, so that the processes
# that share the tests are done at the same time.
FIRST = ("trials", "dispatch", "dashboard", "service", "cli", "test_docs.py", "examples")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders whose files take longest; else the order stays."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    top = item.path.relative_to(TESTS).parts[0]
    return FIRST.index(top) if top in FIRST else len(FIRST)


@pytest.fixture(autouse=True)
def own_environment():
    """Give the environment back as it was: a rank of a trial sets torchrun's variables in it."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def type_command(tmp_path, monkeypatch, capsys):
    """Type a command line in this test's folder; give its status, stdout and stderr.

    It runs in this process: starting one for each would take most of the tests' time.
    """
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", list(words))
        status = run_command_line()
        out, err = capsys.readouterr()
        return status, out, err

    return typed


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServerProcess]:
    """A server that has imported torch and its compiler, and forks processes for trials."""
    with RunResources() as resources, ForkServerProcess(resources) as server:
        server.import_modules((*TRIAL_IMPORTS, *LATER_IMPORTS))
        yield server


@pytest.fixture
def quick_trials(fork_server, monkeypatch):
    """Let commands typed in this process fork their trials from one server, and measure briefly.

    Each would import torch anew, and measure for ten seconds.
    """
    monkeypatch.setattr(
        clusters, "ForkServerProcess", lambda resources, **more: nullcontext(fork_server)
    )
    with brief_trials():
        yield


@pytest.fixture(scope="session")
def h200(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a store with real runs on an H200."""
    copy = tmp_path_factory.mktemp("h200") / "h200.db"
    shutil.copy(TESTS / "data" / "h200.db", copy)
    open_store(str(copy)).close()  # brings it up to date
    return str(copy)


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[Path]:
    """A running PostgreSQL server that listens on a socket in this folder only."""
    binaries = _postgres_binaries()
    # Not pytest's folder: the server's own user must be able to enter it, and sockets want a
    # short path.
    folder = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    data = folder / "data"

    def call(program: str, *args: str) -> None:
        command = [str(binaries / program), "-D", str(data), *args]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    call("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
    settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
    call("pg_ctl", "start", "--wait", f"--options={settings}", f"--log={folder}/log")
    yield folder
    call("pg_ctl", "stop", "--mode=immediate")
    shutil.rmtree(folder)


def _postgres_binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).parent
    if os.environ.get("CI") == "true":
        pytest.fail("CI must test on PostgreSQL, which is not here: apt-get install postgresql")
    pytest.skip("PostgreSQL is not installed: apt-get install postgresql")


@pytest.fixture
def postgres_url(postgres_folder: Path) -> str:
    """The URL of a new, empty schema."""
    return new_schema(postgres_folder)


def new_schema(postgres_folder: Path) -> str:
    """Make an empty schema, which is much faster than a database; return its URL."""
    name = f"test_{next(SCHEMAS)}"
    with psycopg.connect(
        f"host={postgres_folder} user=postgres dbname=postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    search_path = f"options=-csearch_path%3D{name}"
    return f"postgresql://postgres@/postgres?host={postgres_folder}&{search_path}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a file that is not there yet."""
    return f"sqlite:///{tmp_path}/autotune.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A new store's URL, once for each database."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))
