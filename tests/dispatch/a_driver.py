"""A driver that starts an endless trial, prints the mark of its run, and waits to be killed."""

import sys
from pathlib import Path

from conftest import build_request

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.machine import detect_hardware
from autotune.dispatch.ray_runner import RayRunner

folder = Path(sys.argv[1])
with (
    LocalCluster(detect_hardware()) as cluster,
    RayRunner(cluster, log_dir=folder, entry="faulty_entries:run") as runner,
):
    runner.submit(build_request("python_loop", folder))
    while not (folder / "trial-0001.log").exists() or not (folder / "trial-0001.log").read_text():
        assert runner.wait(0.1) == []
    print(cluster.resources.token, cluster.resources.folder, flush=True)  # noqa: T201
    runner.wait(600.0)
