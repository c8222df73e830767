"""A runner comes and goes without a trace in the user's process."""

import os

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.ray_runner import RayRunner
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
