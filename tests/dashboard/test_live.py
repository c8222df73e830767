"""The page of a run that goes on, in a real browser beside a real run."""

import os
import subprocess
import sys
import time

import pytest

from autotune.errors import StoreError
from autotune.storage.query import read_only_query
from tests.dashboard.conftest import REPOSITORY, WORKLOAD, serving

COMMAND = ["run", "model.py", "--budget", "100s", "--trials", "3", "--knobs", "pause_ms"]
SHOWN = "dash_ag_grid.getApi('trials')?.getDisplayedRowCount()"


@pytest.fixture
def running(tmp_path):
    """A run that has just been started."""
    (tmp_path / "model.py").write_text(WORKLOAD)
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *COMMAND],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.terminate()
    process.wait()


def _num_trials(store):
    try:
        return read_only_query(str(store), "SELECT count(*) FROM trials").rows[0][0]
    except StoreError:  # not there yet
        return 0


def test_new_trials_show_by_themselves(tmp_path, running, open_page, keep):
    """Nobody reloads: trials, the best so far, and at the end the conclusion appear."""
    store = tmp_path / "autotune.db"
    while not _num_trials(store):
        assert running.poll() is None, "the run ended before its first trial"
        time.sleep(0.1)
    with serving(tmp_path) as address:
        page = open_page(f"{address}runs/1")
        page.locator(".ag-row a").first.wait_for()
        page.evaluate("window.wasNotReloaded = true")
        keep(page, "run-live")
        page.wait_for_function(f"() => {SHOWN} > 2", timeout=120_000)
        page.locator("#top").get_by_text("done").wait_for(timeout=120_000)
        page.wait_for_function(f"count => {SHOWN} == count", arg=_num_trials(store))
        assert page.evaluate("window.wasNotReloaded")
        keep(page, "run-live-done")
        page.close()  # it would ask on when the server is gone
