"""Starts a Ray cluster for one run, which ends with the driver, however that ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.dispatch import reaper
from autotune.dispatch.import_path import import_path
from autotune.dispatch.mark import new_token
from autotune.dispatch.reaper import RUN_VARIABLE, kill_all
from autotune.dispatch.run_resources import RunResources
from autotune.errors import ClusterError

# Ray's minimum is 75 MiB; only phases and results of trials pass through it.
OBJECT_STORE_BYTES = 80 * 2**20
# Ray's settings for a cluster that runs nothing but trials.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray lowers its workers' priority; a trial runs with that of the user's training.
    "RAY_worker_niceness": "0",
    # Ray would kill one of its workers; the kernel kills the trial, by its oom_score_adj.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_enable_metrics_collection": "0",
    # Ray's history of tasks, which nobody reads. Disconnecting from a cluster that is gone would
    # wait 5 s to send it.
    "RAY_task_events_report_interval_ms": "0",
    # Without this, the names that Ray gives its processes overwrite /proc/<pid>/environ.
    "SPT_NOENV": "1",
}
HEAD_SCRIPT = Path(__file__).with_name("ray_head.py")


class PrivateRay:
    """A Ray cluster on this machine that only this process uses.

    The constructor starts it and returns at once; `address` waits until it is up.
    """

    def __init__(self, resources: RunResources, *, num_slots: int, num_gpus: int) -> None:
        self._resources = resources
        # Ray listens on every interface; without a token it would run anybody's code.
        secrets = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": new_token()}
        self.variables = {**SETTINGS, **secrets}
        self._reaper = self._start_reaper()
        self._head = self._start_head(num_slots, num_gpus)
        self._address: str | None = None

    def address(self) -> str:
        """Wait until the cluster is up, and return its address.

        Raises:
            ClusterError: when Ray does not start.
        """
        if self._address is None:
            assert self._head.stdout is not None
            self._address = self._head.stdout.readline().strip()
        if not self._address:
            tail = self._error_file.read_text()[-2000:]
            raise ClusterError(f"Ray did not start on this machine; it said:\n{tail}")
        return self._address

    def is_alive(self) -> bool:
        """Return whether all of Ray's own processes still run."""
        return self._head.poll() is None

    def close(self) -> None:
        """Kill every process of the cluster. Safe to call twice."""
        kill_all(RUN_VARIABLE, self._resources.token)
        self._reaper.kill()
        self._reaper.wait()
        self._head.wait()
        if self._head.stdout is not None:
            self._head.stdout.close()

    @property
    def _error_file(self) -> Path:
        return self._resources.folder / "head.err"

    def _start_reaper(self) -> "subprocess.Popen[bytes]":
        script = [sys.executable, "-I", "-S", reaper.__file__]
        arguments = [str(os.getpid()), self._resources.token, str(self._resources.folder)]
        return subprocess.Popen(  # noqa: S603  our own script
            [*script, *arguments], stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _start_head(self, num_slots: int, num_gpus: int) -> "subprocess.Popen[str]":
        options = {
            # Ray starts as many workers ahead as it has CPUs: the slots.
            "num_cpus": num_slots,
            "num_gpus": num_gpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "temp_dir": str(self._resources.folder),
        }
        with self._error_file.open("wb") as errors:
            return subprocess.Popen(  # noqa: S603  our own script
                [sys.executable, str(HEAD_SCRIPT), json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(),
                text=True,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        user = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        return {**user, **self._resources.environment, **self.variables, **import_path()}
