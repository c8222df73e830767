"""A cluster of somebody else's: real Ray nodes on this machine, one of them killed in a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.dispatch.clusters import SharedCluster
from autotune.dispatch.ray_runner import RayRunner
from autotune.errors import ClusterError, WorkloadError
from autotune.trials.cause import Cause
from autotune.trials.request import RankPlace
from autotune.trials.result import Outcome
from tests.trials.conftest import TINY


@pytest.fixture
def workload(tmp_path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(TINY)
    return path


@pytest.fixture
def runner(cluster, workload, tmp_path) -> Iterator[RayRunner]:
    """A runner on the cluster."""
    with (
        SharedCluster(cluster.address, num_ranks=1, workload=workload) as shared,
        RayRunner(shared, log_dir=tmp_path, entry="faulty_entries:run") as ray_runner,
    ):
        yield ray_runner


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


def test_logs_come_back_from_nodes_that_lack_the_drivers_folder(runner, make_request, tmp_path):
    """All of a trial's output is in the driver's folder when it has ended, by rank."""
    runner._log_dir = tmp_path / "elsewhere" / "logs"
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


def test_the_workload_is_looked_at_on_a_node(cluster, workload):
    """Its facts come from there; a missing file is noticed before."""
    with SharedCluster(cluster.address, num_ranks=1, workload=workload) as shared:
        shared.start_probe(workload, seed=0)
        assert shared.facts(300.0).batch_size > 0
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
