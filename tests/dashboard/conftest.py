"""A store made by real runs, the real server over it, and a real browser."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
H200 = REPOSITORY / "tests" / "data" / "h200.db"
# One value of the knob raises, so that the store has a failure; its text tries to be markup.
WORKLOAD = (
    TINY
    + """
KNOBS = {"pause_ms": [30, 10, 0]}

class Pause(nn.Module):
    # Sleeping takes the same time on a busy machine, so that trials settle at once.
    def __init__(self, milliseconds):
        super().__init__()
        self.seconds = milliseconds / 1000
    def forward(self, x):
        time.sleep(self.seconds)
        return x

def build_model(pause_ms):
    if pause_ms == 0:
        raise ValueError("<img src=x onerror=alert(1)> **no** [pause](javascript:alert(1))")
    return nn.Sequential(Pause(pause_ms), nn.Linear(16, 3))
"""
)


def run_autotune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command in `folder`, as a user would; its trials are brief."""
    return subprocess.run(
        [sys.executable, "-m", "tests.brief_trials", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture(scope="session")
def real_store(browser, tmp_path_factory) -> Path:
    """A store with a real run, and a second one that has just begun.

    It takes half a minute, so the browser that is to look at it comes first.
    """
    folder = tmp_path_factory.mktemp("runs")
    (folder / "model.py").write_text(WORKLOAD)
    words = ("run", "model.py", "--knobs", "pause_ms", "--budget", "240s", "--trials", "4")
    done = run_autotune(folder, *words)
    assert done.returncode == 0, done.stderr
    with closing(open_store(str(folder / "autotune.db"))) as store:
        store.create_run(make_run(name="second"))
    return folder / "autotune.db"


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """Run the real command in `folder`; give the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "dashboard", "--port", "0", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().rpartition(" at ")[2].strip()
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="session")
def address(real_store) -> Iterator[str]:
    """Where the dashboard over the real store is, without a slash at the end."""
    with serving(real_store.parent) as found:
        yield found.rstrip("/")


@pytest.fixture(scope="session")
def h200_address(h200) -> Iterator[str]:
    """Where the dashboard over runs of a machine with an H200 is."""
    with serving(Path(h200).parent, "--storage", h200) as address:
        yield address.rstrip("/")
