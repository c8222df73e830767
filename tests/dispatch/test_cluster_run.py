"""`autotune run` on a cluster of somebody else's that loses a node in the middle."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
# The second value is slower, so nothing has to be confirmed, and long enough to be caught.
PAUSING = """
KNOBS = {"pause_s": [0.01, 0.5]}

class Pause(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return x

def build_model(pause_s):
    return nn.Sequential(Block(), Pause(pause_s), nn.Linear(16, 3))
"""


@pytest.fixture
def started(cluster, tmp_path):
    """`autotune run` on the cluster, in a process of its own."""
    (tmp_path / "model.py").write_text(TINY + PAUSING)
    options = ["--knobs", "pause_s", "--budget", "5m", "--ray-address", cluster.address, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "run", "model.py", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def trials(type_command):
    """Return a function that gives the trials of the run, none before there is one."""

    def read():
        status, out, _ = type_command("autotune", "trials", "last", "--json")
        return [] if status else json.loads(out)

    return read


def test_a_run_survives_a_lost_node(started, cluster, trials):
    """Its trial is `infra` and is tried again; the run ends with a plan, and exit code 0."""
    while not (len(trials()) == 2 and (node := busy_node(cluster))):
        assert started.poll() is None, started.communicate()
        time.sleep(0.2)
    cluster.remove_node(node, allow_graceful=False)
    out, err = started.communicate()
    assert started.returncode == 0, err
    assert json.loads(out)["state"] == "done"
    ended = {trial["number"]: (trial["plan"], trial["outcome"]) for trial in trials()}
    plan, outcome = ended[2]
    assert outcome == "infra"
    assert ended[3] == (plan, "ok")
    assert [outcome for _, outcome in ended.values()].count("infra") == 1


def busy_node(cluster):
    """Return the node that runs a trial: a process forked from a fork server."""
    parents = {
        process.pid: process.info["ppid"]
        for process in psutil.process_iter(["ppid", "cmdline"])
        if "autotune.dispatch.fork_server" in (process.info["cmdline"] or ())
    }
    for node in cluster.list_all_nodes():
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        below = {child.pid for child in raylet.children(recursive=True)}
        if any(parents.get(pid) in parents for pid in below):
            return node
    return None
