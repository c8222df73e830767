"""A runner comes and goes without a trace in the user's process."""

import os
import signal

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.ray_runner import RayRunner
from autotune.dispatch.reaper import RUN_VARIABLE, find_processes, living_processes
from autotune.errors import ClusterError


def test_the_users_environment_stays_as_it_was(cpu, entries_importable, tmp_path, make_request):
    """A private Ray changes no variable of the driver, and a second one can follow."""
    before = dict(os.environ)
    for number in (1, 2):
        with (
            LocalCluster(cpu) as cluster,
            RayRunner(cluster, log_dir=tmp_path, entry="faulty_entries:run") as runner,
        ):
            runner.submit(make_request("none", number=number))
            assert len(runner.wait(300.0)) == 1
        assert dict(os.environ) == before


def test_close_is_safe_before_the_start_and_twice(cpu, tmp_path):
    """Nothing was started, so nothing has to be waited for."""
    cluster = LocalCluster(cpu)
    runner = RayRunner(cluster, log_dir=tmp_path)
    for thing in (runner, cluster, runner, cluster):
        thing.close()


def test_a_lost_ray_gives_infra_and_says_so(cpu, entries_importable, tmp_path, make_request):
    """When Ray's own processes die, the running trial is `infra` and no other can start."""
    with (
        LocalCluster(cpu) as cluster,
        RayRunner(cluster, log_dir=tmp_path, entry="faulty_entries:run") as runner,
    ):
        runner.submit(make_request("python_loop"))
        runner.wait(1.0)
        cluster.ray._head.kill()
        cluster.ray._head.wait()
        (finished,) = runner.wait(300.0)
        assert finished.result.outcome.value == "infra"
        with pytest.raises(ClusterError, match="type the same command"):
            runner.submit(make_request("none", number=2))


@pytest.mark.timeout(120)  # a hang of the driver's own fails the test
def test_processes_that_hang_do_not_keep_a_run_from_ending(
    cpu, entries_importable, tmp_path, make_request
):
    """With all of them stopped, trials are given back at once, and nothing is left at the end."""
    with (
        LocalCluster(cpu) as cluster,
        RayRunner(cluster, log_dir=tmp_path, entry="faulty_entries:run") as runner,
    ):
        runner.submit(make_request("python_loop", number=4))
        runner.wait(1.0)
        ours = find_processes(RUN_VARIABLE, cluster.resources.token)
        for pid in ours:
            os.kill(pid, signal.SIGSTOP)
        (dropped,) = runner.drop()
        assert dropped.request.number == 4
        assert dropped.result.outcome.value == "infra"
        assert runner.drop() == []
    assert not ours & living_processes().keys()
