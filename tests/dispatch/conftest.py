import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.machine import detect_hardware
from autotune.dispatch.ray_runner import RayRunner
from autotune.search_space.plan import Plan
from autotune.trials.request import Deadlines, TrialRequest
from autotune.trials.result import Purpose, TrialResult

HERE = Path(__file__).parent
# Ray asks its nodes every second whether they live, instead of every three, and gives one up after
# three refusals, instead of five.
SOON_LOST = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="session")
def cpu():
    """This machine, without its GPUs."""
    hardware = detect_hardware()
    return dataclasses.replace(hardware, device_kind="cpu", num_devices=1, capability=None)


@pytest.fixture(scope="module")
def entries_importable() -> Iterator[None]:
    """Let trial processes import the faulty entries."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *([path] if path else [])]))
        patch.setattr(sys, "path", [*sys.path, str(HERE)])
        yield


@pytest.fixture(scope="module")
def runner(cpu, entries_importable, tmp_path_factory) -> Iterator[RayRunner]:
    """One private Ray for all the tests of a module: starting it is slow."""
    log_dir = tmp_path_factory.mktemp("logs")
    with (
        LocalCluster(cpu) as cluster,
        RayRunner(cluster, log_dir=log_dir, entry="faulty_entries:run") as ray_runner,
    ):
        yield ray_runner


def build_request(fault: str, working_dir: Path, *, number: int = 1, **more) -> TrialRequest:
    """Return a request for the trial that does `fault`."""
    return TrialRequest(
        number=number,
        plan=Plan.of({"fault": fault}),
        purpose=Purpose.BASELINE,
        workload_path="model.py",
        working_dir=str(working_dir),
        device_kind="cpu",
        **{"deadlines": Deadlines(build_s=60.0), **more},
    )


@pytest.fixture
def make_request(tmp_path) -> Callable[..., TrialRequest]:
    """Return `build_request` for the test's own folder."""
    return lambda fault, **more: build_request(fault, tmp_path, **more)


@pytest.fixture
def run_one(runner, make_request) -> Callable[..., TrialResult]:
    """Return a function that runs one trial to its end."""

    def run(fault: str, **more) -> TrialResult:
        request = make_request(fault, **more)
        runner.submit(request)
        (finished,) = runner.wait(300.0)
        assert finished.request == request
        return finished.result

    return run


def add_node(nodes: Any, options: dict[str, object]) -> None:
    """Start a node; Ray gives it 30 s, and a busy machine may need another try."""
    try:
        nodes.add_node(**options)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        nodes.add_node(**options)


@pytest.fixture(scope="module")
def cluster(entries_importable) -> Iterator[Any]:
    """A head without devices, where the driver sits, and two nodes with a core each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON_LOST}
    for options in (head, {"num_cpus": 1}, {"num_cpus": 1}):
        add_node(nodes, options)
    yield nodes
    nodes.shutdown()
