"""A server over a store, with commands of tests in place of `autotune run`."""

import io
import json
import sys
import tarfile
import time
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from autotune.service.application import make_service
from autotune.service.devices import Devices
from autotune.service.server import JobLoop
from autotune.service.settings import ServiceSettings
from autotune.service.tokens import digest
from autotune.storage.access import Role
from autotune.storage.job_records import ENDED
from autotune.storage.sql import open_store

TOKENS = {"lou": Role.LOOK, "ann": Role.SUBMIT, "sam": Role.SUBMIT, "eve": Role.ADMINISTER}
ADDRESS = "http://box:8060"


def packed(**files):
    """Return a compressed tar archive with these files."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        for name, text in (files or {"model.py": "pass\n"}).items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return into.getvalue()


def python_command(code):
    """Return a stand-in for `autotune run` that runs Python code in the job's folder."""
    return lambda job, folder: [sys.executable, "-c", code]


@pytest.fixture
def make_settings(tmp_path, url):
    """Make settings over the store at `url`; keywords change them."""
    open_store(url).close()

    def make(**changes):
        ids = tuple(f"cpu{n}" for n in range(changes.pop("num_devices", 2)))
        values = {
            "storage": url,
            "folder": tmp_path / "service",
            "devices": Devices(kind="cpu", ids=ids, cores={}),
            "stand_in": python_command("print('well done')"),
        }
        return ServiceSettings(**{**values, **changes})

    return make


@pytest.fixture
def with_tokens(url):
    """Give the store a token for each name in `TOKENS`, which is the name itself."""
    with closing(open_store(url)) as store:
        for name, role in TOKENS.items():
            store.tokens.add(name, digest(f"token-of-{name}"), role)
    return url


class Caller:
    """Calls a server's routes with the token of somebody."""

    def __init__(self, client):
        self._client = client

    def call(self, who, method, path, **options):
        headers = {"Authorization": f"Bearer token-of-{who}", **options.pop("headers", {})}
        return self._client.request(method, f"/api/v1{path}", headers=headers, **options)

    def submit(self, who="ann", archive=None, **job):
        form = {"job": json.dumps({"model": "model.py", **job})}
        files = {"archive": ("w.tar.gz", packed() if archive is None else archive)}
        return self.call(who, "POST", "/jobs", data=form, files=files)


@pytest.fixture
def caller(make_settings, with_tokens):
    """Call a server that starts nothing."""
    settings = make_settings()
    writer = settings.open_store()
    app = make_service(settings, writer, lambda: None)
    with closing(writer), TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
        yield Caller(client)


@pytest.fixture
def make_loop(make_settings):
    """Make loops over the store, which are closed afterwards; keywords change the settings."""
    loops = []

    def make(**changes):
        settings = make_settings(**changes)
        settings.workloads.mkdir(parents=True, exist_ok=True)
        store = open_store(settings.storage)
        ended = []
        loop = JobLoop(store, settings, ended.append)
        loop.ended, loop.store = ended, store
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        for process in loop._processes.values():
            process.kill()
        loop.store.close()


def run_until(loop, is_reached, limit_s=60.0):
    """Let a loop go round until something is reached."""
    until = time.monotonic() + limit_s
    while not is_reached():
        assert time.monotonic() < until, loop.store.jobs.jobs()
        loop.tick()
        time.sleep(0.02)


def all_ended(loop):
    return lambda: all(job.state in ENDED for job in loop.store.jobs.jobs())
