"""A trial runs in the environment that the user's own training would have."""

import json
import os

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.ray_runner import RayRunner
from autotune.trials.result import Outcome

# Set on purpose: who we are, where our package is, and what would stop a trial at a prompt.
OURS = {"AUTOTUNE_RUN", "AUTOTUNE_TRIAL", "PYTHONPATH", "PYTHONBREAKPOINT", "PYTEST_CURRENT_TEST"}
A_LIBRARY = "/lib/x86_64-linux-gnu/libm.so.6"


@pytest.fixture
def inside(cpu, entries_importable, tmp_path, make_request, monkeypatch):
    """What a trial sees whose driver has a few variables that Ray likes to change."""
    if os.path.exists(A_LIBRARY):  # noqa: PTH110
        monkeypatch.setenv("LD_PRELOAD", A_LIBRARY)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MY_SETTING", "kept")
    with (
        LocalCluster(cpu) as cluster,
        RayRunner(cluster, log_dir=tmp_path, entry="faulty_entries:surroundings") as runner,
    ):
        runner.submit(make_request("none"))
        while not (finished := runner.wait(1.0)):
            pass
    result = finished[0].result
    assert result.outcome is Outcome.CRASH
    return json.loads(str(result.error))


def test_variables_and_priority_are_the_users(inside):
    """No variable of the user's is lost or changed, allocators included, and none is nicer."""
    seen = inside["environ"]
    expected = {k: v for k, v in os.environ.items() if k not in OURS}
    assert {k: seen.get(k) for k in expected} == expected
    assert inside["nice"] == os.nice(0)
