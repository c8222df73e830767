"""Real databases for the store's tests: a file, and a PostgreSQL server of our own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from autotune.search_space.plan import Plan
from autotune.storage.records import NewRun
from autotune.storage.sql import SqlStore, open_store
from autotune.trials.result import Measurement, Window

SCHEMAS = count(1)


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
    """The URL of a new, empty schema, which is made much faster than a database."""
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


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    """A new store in each database."""
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def new_run() -> Callable[..., NewRun]:
    """Make a run that is about to start; keywords change its fields."""
    return make_run


def make_run(**changes: object) -> NewRun:
    """Return a run of a small workload."""
    values: dict[str, object] = {
        "key": "key",
        "name": None,
        "workload_path": "/home/me/model.py",
        "workload_hash": "abc",
        "hardware": {"device_name": "cpu", "num_cores": 2},
        "facts": {"batch_size": 32},
        "options": {"numerics": "precision"},
        "baseline": Plan.of({"precision": "fp32", "workers": 0, "pin_memory": False}),
        "budget_s": 60.0,
        "driver": "host:1:1",
    }
    return NewRun(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """Make a measurement of a throughput; keywords change its fields."""
    return make_measurement


def make_measurement(throughput: float, **changes: object) -> Measurement:
    """Return a complete measurement with two windows."""
    window = Window(steps=10, samples=320, seconds=0.25, data_wait_s=0.01)
    values: dict[str, object] = {
        "throughput": throughput,
        "throughput_low": throughput * 0.99,
        "throughput_high": throughput * 1.01,
        "step_ms": 25.0,
        "step_ms_spread": 0.01,
        "data_wait_share": 0.04,
        "build_s": 0.5,
        "first_step_s": 1.5,
        "warm_up_s": 1.0,
        "measure_s": 2.0,
        "first_loss": 2.5,
        "last_loss": 1.5,
        "settled": True,
        "peak_reserved_overall_bytes": 3 * 2**30,
        "peak_host_bytes": 2**40,
        "windows": (window, Window(steps=9, samples=288, seconds=0.26, data_wait_s=0.0)),
    }
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]
