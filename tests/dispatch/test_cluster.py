"""A cluster of somebody else's: real Ray nodes on this machine, one of them killed in a run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.dispatch.clusters import SharedCluster
from autotune.dispatch.ray_runner import RayRunner
from autotune.errors import ClusterError, WorkloadError
from autotune.trials.cause import Cause
from autotune.trials.request import ProbeRequest, RankPlace, TrialRequest
from autotune.trials.result import Outcome
from tests.dispatch.conftest import add_node, build_request
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
    """`autotune run` on the cluster, in a process of its own, with brief trials."""
    (tmp_path / "model.py").write_text(TINY + PAUSING)
    options = ["--knobs", "pause_s", "--budget", "5m", "--ray-address", cluster.address, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.brief_trials", "run", "model.py", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()
    add_node(cluster, {"num_cpus": 1})


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


@pytest.fixture(scope="module")
def workload(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "model.py"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def site(cluster, workload) -> Iterator[SharedCluster]:
    """The cluster as trials of one rank see it."""
    with SharedCluster(cluster.address, num_ranks=1, workload=workload) as cluster_site:
        yield cluster_site


@pytest.fixture(scope="module")
def runner(site, tmp_path_factory) -> Iterator[RayRunner]:
    """A runner on the cluster."""
    log_dir = tmp_path_factory.mktemp("logs")
    with RayRunner(site, log_dir=log_dir, entry="faulty_entries:run") as ray_runner:
        yield ray_runner


@pytest.fixture
def make_request(workload) -> Callable[..., TrialRequest]:
    """Return `build_request` for the workload's folder."""
    return lambda fault, **more: build_request(fault, workload.parent, **more)


def test_devices_are_those_of_all_nodes(runner):
    """Each node with a core is a device; the head has none."""
    assert runner.hardware.device_kind == "cpu"
    assert runner.capacity == 2


def test_trials_run_beside_each_other_and_over_nodes(runner, make_request):
    """One trial on each node at a time, or one of two ranks over both."""
    for number in (1, 2):
        runner.submit(make_request("none", number=number))
    ended = [finished for _ in range(2) for finished in runner.wait(300.0)]
    assert [each.result.outcome for each in ended] == [Outcome.OK] * 2
    runner.submit(make_request("none", number=3, place=RankPlace(world_size=2)))
    (both,) = runner.wait(300.0)
    assert both.result.log_tail == "[rank 0]\ntrial 3 speaks\n[rank 1]\ntrial 3 speaks\n"


def test_logs_come_back_from_nodes_that_lack_the_drivers_folder(
    runner, make_request, tmp_path, monkeypatch
):
    """All of a trial's output is in the driver's folder when it has ended, by rank."""
    monkeypatch.setattr(runner, "_log_dir", tmp_path / "elsewhere" / "logs")
    runner.submit(make_request("none", number=5, place=RankPlace(world_size=2)))
    (finished,) = runner.wait(300.0)
    logs = {path.name: path.read_text() for path in runner._log_dir.iterdir()}
    said = "trial 5 speaks\n"
    assert logs == {"trial-0005.log": said, "trial-0005-rank-1.log": said}
    assert finished.result.log_tail == f"[rank 0]\n{said}[rank 1]\n{said}"


def test_nothing_answers(workload):
    """An address where no cluster is, is an error that names the option."""
    with pytest.raises(ClusterError, match="check --ray-address"):
        SharedCluster("127.0.0.1:1", num_ranks=1, workload=workload)


def test_the_workload_is_looked_at_on_a_node(site, cluster, workload):
    """Its facts come from there; a missing file is noticed before."""
    site.start_probe(
        ProbeRequest(
            workload_path=str(workload),
            working_dir=str(Path.cwd()),
            hardware=site.hardware,
            seed=0,
        )
    )
    assert site.facts(300.0).batch_size == 4
    with pytest.raises(WorkloadError, match="there is no file"):
        SharedCluster(cluster.address, num_ranks=1, workload=workload.with_name("none.py"))


def test_a_lost_node_costs_its_trial_and_not_the_run(cluster, runner, make_request):
    """The trial is `infra`; the next ones run on the node that is left, and nothing hangs."""
    for number in (1, 2):
        runner.submit(make_request("python_loop", number=number, give_up_after_s=60.0))
    runner.wait(3.0)
    cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
    (lost,) = runner.wait(300.0)
    assert lost.result.outcome is Outcome.INFRA
    runner.cancel(({1, 2} - {lost.request.number}).pop(), Cause.USER_STOPPED)
    assert len(runner.wait(300.0)) == 1
    assert runner.capacity == 1
    runner.submit(make_request("none", number=4))
    (after,) = runner.wait(300.0)
    assert after.result.outcome is Outcome.OK
