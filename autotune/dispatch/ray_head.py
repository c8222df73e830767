"""Runs the head of a private Ray cluster as a program: `python ray_head.py OPTIONS_JSON`.

It prints one line, the cluster's address, and runs until it is killed or one of Ray's processes
ends. In a process of its own, Ray's environment variables are not the user's, Ctrl-C in the
terminal does not reach it, and it starts while the driver does other things.

It starts only those of Ray's processes that run actors: control store, raylet and workers. The
web server, the autoscaler, the log monitor and the two agents of each node are not needed, and
take more than half of Ray's start-up: seconds of a short budget on two cores.
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

CHECK_EVERY_S = 0.5  # whether one of Ray's processes has ended
# The ports that the raylet waits for its agents to report.
AGENT_PORTS = (
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
)
# The port that Ray's agents report for a service that is not installed.
NOT_IN_USE = -1
# The raylet's flags for the commands that start its agents.
AGENT_FLAGS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
# Run in place of the agents, as the raylet ends when they end.
IDLE_COMMAND = "sh -c 'exec sleep infinity'"


class BareNode(Node):
    """A head node without Ray's web server and agents."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start no web server, and record that there is none."""
        self._webui_url = ""

    def start_raylet(self, *args: Any, **more: Any) -> None:
        """Start the raylet, after writing the ports that it expects its agents to report."""
        folder = str(self._session_dir)
        for name in AGENT_PORTS:
            persist_port(folder, self._node_id, name, NOT_IN_USE)
        super().start_raylet(*args, **more)


def with_idle_agents(command: list[str]) -> list[str]:
    """Return a raylet's command with agents that do nothing; any other command unchanged."""
    return [_with_idle_agent(argument) for argument in command]


def _with_idle_agent(argument: str) -> str:
    flag = next((flag for flag in AGENT_FLAGS if argument.startswith(flag)), None)
    return argument if flag is None else flag + IDLE_COMMAND


def main(options: dict[str, Any]) -> None:
    """Start the cluster, print its address, and return when one of its processes has ended."""
    start_process: Any = services.start_ray_process

    def start_without_agents(command: list[str], *args: Any, **more: Any) -> Any:
        return start_process(with_idle_agents(command), *args, **more)

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
