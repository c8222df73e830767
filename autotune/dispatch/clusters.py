"""The Ray clusters that trials run on: a private one on this machine, or one that others share.

A cluster probes the workload first, then opens the slots for its trials.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from autotune.dispatch.fork_client import (
    COMMAND_IMPORTS,
    LATER_IMPORTS,
    TRIAL_IMPORTS,
    ForkServerProcess,
)
from autotune.dispatch.mark import new_token
from autotune.dispatch.private_ray import PrivateRay
from autotune.dispatch.probing import Probe, check_file
from autotune.dispatch.run_resources import RunResources
from autotune.dispatch.static_imports import sets_environment, static_imports
from autotune.search_space.command import Command
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.trials.command.forked import is_plain_script
from autotune.trials.request import ProbeRequest

if TYPE_CHECKING:
    from autotune.dispatch.remote_probe import RemoteProbe
    from autotune.dispatch.slots import Slots


class Cluster(Protocol):
    """A Ray cluster for one run, a context manager. One thread owns it and makes all calls."""

    @property
    def hardware(self) -> Hardware:
        """The hardware that trials run on."""

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules to import before a trial; after the probe also those of the workload."""

    def start_probe(self, request: ProbeRequest) -> None:
        """Start to probe a workload, and return at once; `facts` waits for the result.

        Raises:
            WorkloadError: when there is no such file.
        """

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """Wait for the probe, up to `timeout_s`, and return what it found.

        Raises:
            WorkloadError: when the workload breaks its contract, raises, ends its process, or is
                too slow.
        """

    def start(self) -> None:
        """Start Ray if it must be started, and return at once."""

    def open_slots(self) -> "Slots":
        """Wait for Ray, and return the slots. To be called once.

        Raises:
            ClusterError: when Ray does not start, or the devices are not free.
        """

    def trial_has_begun(self) -> None:
        """Begin to import what the first trial can do without, now that it runs."""

    def restart_fork_server(self) -> None:
        """Start the fork server again if it has died or was stopped."""

    def kill_fork_server(self) -> None:
        """Kill a fork server that hangs, with all trials that it started."""

    def is_lost(self) -> bool:
        """Return whether Ray has ended."""

    def close(self) -> None:
        """End all processes of the run and free the devices. Safe to call twice."""


class LocalCluster:
    """This machine under a private Ray, which ends with `close`, or with this process.

    Args:
        hardware: of this machine.
        workload: the path of the user's model.py or script; what it imports is imported at once.
        command: that runs the script; None: the workload is a model.py.
    """

    def __init__(
        self, hardware: Hardware, workload: Path | None = None, command: Command | None = None
    ) -> None:
        self._hardware = hardware
        self._exit_stack = ExitStack()
        self.resources = self._exit_stack.enter_context(RunResources())
        self._forks_trials = command is None or _runs_in_fork(command, workload)
        needed = TRIAL_IMPORTS if command is None else COMMAND_IMPORTS
        self._imports: tuple[str, ...] = needed if self._forks_trials else ()
        guessed = static_imports(workload) if self._forks_trials and workload is not None else ()
        self._server = self._exit_stack.enter_context(
            ForkServerProcess(self.resources, imports=self._imports, guessed=guessed)
        )
        self._probe: Probe | None = None
        self.ray: PrivateRay | None = None
        self._is_connected = False

    @property
    def hardware(self) -> Hardware:
        """The hardware of this machine."""
        return self._hardware

    @property
    def imports(self) -> tuple[str, ...]:
        """See `Cluster`."""
        return self._imports

    def start_probe(self, request: ProbeRequest) -> None:
        """See `Cluster`."""
        self._probe = self._exit_stack.enter_context(Probe(self._server, request))
        if self._forks_trials and self._hardware.device_kind == "cpu":
            self._import(LATER_IMPORTS)  # during a trial they would take its cores

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """See `Cluster`."""
        assert self._probe is not None
        facts = self._probe.facts(timeout_s)
        if self._forks_trials:
            self._import(facts.imports)
        return facts

    def trial_has_begun(self) -> None:
        """See `Cluster`."""
        if self._forks_trials and not set(LATER_IMPORTS).issubset(self._imports):
            self._import(LATER_IMPORTS)

    def _import(self, modules: tuple[str, ...]) -> None:
        self._imports += modules
        self._server.import_modules(modules)

    def start(self) -> None:
        """See `Cluster`."""
        if self.ray is None:
            count = self._hardware.num_devices
            num_gpus = count if self._hardware.device_kind == "cuda" else 0
            self.ray = PrivateRay(self.resources, num_slots=count, num_gpus=num_gpus)
            # Killed first: a process of Ray's that hangs would keep us from disconnecting.
            self._exit_stack.callback(self._disconnect)
            self._exit_stack.callback(self.ray.close)

    def open_slots(self) -> "Slots":
        """See `Cluster`."""
        # These imports take seconds, and probing a workload does not need them.
        from autotune.dispatch.connection import connect  # noqa: PLC0415
        from autotune.dispatch.devices import local_devices  # noqa: PLC0415
        from autotune.dispatch.slots import Slots  # noqa: PLC0415

        self.start()
        assert self.ray is not None
        connect(self.ray.address(), self.ray.variables)
        self._is_connected = True
        return Slots(
            local_devices(self._hardware),
            token=self.resources.token,
            fork_address=self._server.address,
        )

    def _disconnect(self) -> None:
        if self._is_connected:
            from autotune.dispatch.connection import disconnect  # noqa: PLC0415  see open_slots

            disconnect()

    def restart_fork_server(self) -> None:
        """See `Cluster`."""
        self._server.restart_if_unusable()

    def kill_fork_server(self) -> None:
        """See `Cluster`."""
        self._server.kill()

    def is_lost(self) -> bool:
        """See `Cluster`."""
        return self.ray is not None and not self.ray.is_alive()

    def close(self) -> None:
        """See `Cluster`."""
        self._exit_stack.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _runs_in_fork(command: Command, script: Path | None) -> bool:
    """Whether trials of a command are forked from a process with the imports of its script."""
    return script is not None and is_plain_script(command.argv) and not sets_environment(script)


class SharedCluster:
    """A running Ray cluster that others use, too; this machine may have neither device nor torch.

    The workload's folder is copied to nodes that do not have it.

    Args:
        address: of the cluster, as `ray.init` takes it.
        num_ranks: the number of ranks of the largest trials.
        workload: the path of the user's model.py.

    Raises:
        ClusterError: when no cluster answers at that address.
        WorkloadError: when there is no such file.
    """

    def __init__(self, address: str, *, num_ranks: int, workload: Path) -> None:
        from autotune.dispatch.connection import connect, disconnect  # noqa: PLC0415
        from autotune.dispatch.devices import cluster_devices  # noqa: PLC0415

        check_file(workload)
        self._workload = workload.absolute()
        self._exit_stack = ExitStack()
        connect(address)
        self._exit_stack.callback(disconnect)
        self._devices = cluster_devices(num_ranks)
        self._imports: tuple[str, ...] = ()
        self._slots: Slots | None = None
        self._probe: RemoteProbe | None = None

    @property
    def hardware(self) -> Hardware:
        """The hardware of one node, with the number of devices and cores of all nodes."""
        return self._devices.hardware

    @property
    def imports(self) -> tuple[str, ...]:
        """See `Cluster`."""
        return self._imports

    def start_probe(self, request: ProbeRequest) -> None:
        """See `Cluster`."""
        from autotune.dispatch.remote_probe import RemoteProbe  # noqa: PLC0415

        self._imports = (*TRIAL_IMPORTS, *LATER_IMPORTS)
        self._probe = RemoteProbe(self.open_slots()[0].actor, request)

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """See `Cluster`."""
        assert self._probe is not None
        facts = self._probe.facts(timeout_s)
        self._imports += facts.imports
        return facts

    def start(self) -> None:
        """Do nothing: the cluster is running already."""

    def open_slots(self) -> "Slots":
        """See `Cluster`."""
        from autotune.dispatch.slots import Slots  # noqa: PLC0415

        if self._slots is None:
            self._slots = Slots(
                self._devices, token=new_token(), workload_folder=self._workload.parent
            )
        return self._slots

    def trial_has_begun(self) -> None:
        """Do nothing: all imports were asked for before."""

    def restart_fork_server(self) -> None:
        """Do nothing: each slot restarts its own fork server."""

    def kill_fork_server(self) -> None:
        """Do nothing: each slot has its own fork server, which ends with it."""

    def is_lost(self) -> bool:
        """Return False: the loss of a node ends its trials alone."""
        return False

    def close(self) -> None:
        """Disconnect; Ray then ends the slot actors, and with them the processes they started."""
        self._exit_stack.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()
