"""The head of a private Ray cluster, a process of its own: `python ray_head.py OPTIONS_JSON`.

A process of its own, because then Ray's environment is not the user's, the terminal's Ctrl-C
does not reach it, and it starts while the driver does other things. It prints one line, the
address, and lives until it is killed or one of Ray's processes is gone.

Of Ray it starts what runs actors: the control store, the raylet, the workers. The web server,
the autoscaler, the log monitor and the two agents of each node serve things not used here, and
cost more than half of Ray's start-up; on two cores, seconds of a short budget.
"""

import json
import sys
import time
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._raylet import (  # type: ignore[attr-defined]
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    persist_port,
)

CHECK_EVERY_S = 0.5
AGENT_PORTS = (
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
)
# What Ray's own agents say where a service is not installed.
NOT_IN_USE = -1
AGENT_FLAGS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
# The raylet insists on its agents, and ends when they do.
IDLE_COMMAND = "sh -c 'exec sleep infinity'"


class BareNode(Node):
    """A head node without the processes that only serve people."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start nothing, and say that there is no web page."""
        self._webui_url = ""

    def start_raylet(self, *args: Any, **more: Any) -> None:
        """Start the raylet, which waits until its agents have told their ports."""
        folder = str(self._session_dir)
        for name in AGENT_PORTS:
            persist_port(folder, self._node_id, name, NOT_IN_USE)
        super().start_raylet(*args, **more)


def idle_agents(command: list[str]) -> list[str]:
    """Return the command with agents that do nothing; another command than the raylet's as is."""
    return [_idle(argument) for argument in command]


def _idle(argument: str) -> str:
    flag = next((flag for flag in AGENT_FLAGS if argument.startswith(flag)), None)
    return argument if flag is None else flag + IDLE_COMMAND


def main(options: dict[str, Any]) -> None:
    """Start the cluster, print its address, and return when one of its processes is gone."""
    start_process: Any = services.start_ray_process

    def start_without_agents(command: list[str], *args: Any, **more: Any) -> Any:
        return start_process(idle_agents(command), *args, **more)

    services.start_ray_process = start_without_agents
    bare: dict[str, Any] = {"no_monitor": True, "include_log_monitor": False}
    parameters = RayParams(**options, **bare, include_dashboard=False)
    node: Any = BareNode(
        parameters, head=True, shutdown_at_exit=False, spawn_reaper=False, ray_init_cluster=True
    )
    print(node.gcs_address, flush=True)  # noqa: T201  the driver reads it
    while not node.dead_processes():
        time.sleep(CHECK_EVERY_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
