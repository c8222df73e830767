"""Where a run's trials happen: this machine under a Ray of its own, or somebody's Ray cluster.

A site looks at the workload first, then opens the seats for its trials.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from autotune.dispatch.forked import COMPILER_IMPORTS, TRIAL_IMPORTS, ForkServer
from autotune.dispatch.mark import Scope, new_token
from autotune.dispatch.private_ray import PrivateRay
from autotune.dispatch.probing import Probe, check_file
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.trials.request import ProbeRequest

if TYPE_CHECKING:
    from autotune.dispatch.remote_probe import RemoteProbe
    from autotune.dispatch.seats import Seats


class Site(Protocol):
    """Owned by one thread; a context manager that leaves nothing behind."""

    @property
    def hardware(self) -> Hardware:
        """What trials run on."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules to import where trials start; what the workload needs among them, once known."""

    def look_at(self, workload: Path, seed: int) -> None:
        """Begin to probe the workload; `facts` has the answer.

        Raises:
            WorkloadError: at once when there is no such file.
        """

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """Return what the probe found.

        Raises:
            WorkloadError: when the workload breaks its contract, raises, dies, or takes longer.
        """

    def start(self) -> None:
        """Begin to bring up what `open` needs, and return at once."""

    def open(self) -> "Seats":
        """Return the seats, once; waits until they are there.

        Raises:
            ClusterError: when Ray does not start, or the devices are not free.
        """

    def revive(self) -> None:
        """Start again what trials are started by, if it has died."""

    def is_lost(self) -> bool:
        """Whether Ray as a whole is gone."""

    def close(self) -> None:
        """Give everything back. Safe to call twice."""


class LocalSite:
    """This machine, under a private Ray that is gone after `close`, or a second after we are."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._things = ExitStack()
        self.scope = self._things.enter_context(Scope())
        self._server = self._things.enter_context(ForkServer(self.scope))
        self._imports: tuple[str, ...] = ()
        self._probe: Probe | None = None
        self.ray: PrivateRay | None = None

    @property
    def hardware(self) -> Hardware:
        """This machine."""
        return self._hardware

    @property
    def imports(self) -> tuple[str, ...]:
        """See `Site`."""
        return self._imports

    def look_at(self, workload: Path, seed: int) -> None:
        """See `Site`."""
        request = _probe_request(workload, self._hardware, seed)
        self._prepare(TRIAL_IMPORTS)
        self._probe = self._things.enter_context(Probe(self._server, request))
        self._prepare(COMPILER_IMPORTS)

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """See `Site`."""
        assert self._probe is not None
        facts = self._probe.facts(timeout_s)
        self._prepare(facts.imports)
        return facts

    def _prepare(self, modules: tuple[str, ...]) -> None:
        self._imports += modules
        self._server.prepare(modules)

    def start(self) -> None:
        """See `Site`."""
        if self.ray is None:
            count = self._hardware.num_devices
            num_gpus = count if self._hardware.device_kind == "cuda" else 0
            self.ray = PrivateRay(self.scope, num_slots=count, num_gpus=num_gpus)
            self._things.callback(self.ray.close)

    def open(self) -> "Seats":
        """See `Site`."""
        # Seconds of imports, which looking at a workload does not need.
        from autotune.dispatch.cluster import local_devices  # noqa: PLC0415
        from autotune.dispatch.connection import connect, disconnect  # noqa: PLC0415
        from autotune.dispatch.seats import Seats  # noqa: PLC0415

        self.start()
        assert self.ray is not None
        connect(self.ray.address(), self.ray.secrets)
        self._things.callback(disconnect)
        return Seats(
            local_devices(self._hardware),
            token=self.scope.token,
            fork_address=self._server.address,
        )

    def revive(self) -> None:
        """See `Site`."""
        self._server.revive()

    def is_lost(self) -> bool:
        """See `Site`."""
        return self.ray is not None and not self.ray.is_alive()

    def close(self) -> None:
        """See `Site`."""
        self._things.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


class ClusterSite:
    """A Ray cluster that others use, too; this machine need not have a device, or torch.

    The workload's folder travels to the nodes that lack it.

    Args:
        address: of the cluster, as `ray.init` takes it.
        num_ranks: of the largest trials.
        workload: the user's model.py.

    Raises:
        ClusterError: when nothing answers there.
    """

    def __init__(self, address: str, *, num_ranks: int, workload: Path) -> None:
        from autotune.dispatch.cluster import cluster_devices  # noqa: PLC0415
        from autotune.dispatch.connection import connect, disconnect  # noqa: PLC0415

        check_file(workload)
        self._workload = workload.absolute()
        self._things = ExitStack()
        connect(address)
        self._things.callback(disconnect)
        self._devices = cluster_devices(num_ranks)
        self._imports: tuple[str, ...] = ()
        self._seats: Seats | None = None
        self._probe: RemoteProbe | None = None

    @property
    def hardware(self) -> Hardware:
        """A node's hardware, with the devices of all."""
        return self._devices.hardware

    @property
    def imports(self) -> tuple[str, ...]:
        """See `Site`."""
        return self._imports

    def look_at(self, workload: Path, seed: int) -> None:
        """See `Site`."""
        from autotune.dispatch.remote_probe import RemoteProbe  # noqa: PLC0415

        request = _probe_request(workload, self.hardware, seed)
        self._imports = (*TRIAL_IMPORTS, *COMPILER_IMPORTS)
        self._probe = RemoteProbe(self.open()[0].slot, request)

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """See `Site`."""
        assert self._probe is not None
        facts = self._probe.facts(timeout_s)
        self._imports += facts.imports
        return facts

    def start(self) -> None:
        """See `Site`: somebody started it long ago."""

    def open(self) -> "Seats":
        """See `Site`."""
        from autotune.dispatch.seats import Seats  # noqa: PLC0415

        if self._seats is None:
            self._seats = Seats(
                self._devices, token=new_token(), workload_folder=self._workload.parent
            )
        return self._seats

    def revive(self) -> None:
        """See `Site`: each slot has a server of its own, and looks after it."""

    def is_lost(self) -> bool:
        """See `Site`: a node may be lost, and trials hear of it; the cluster is not ours."""
        return False

    def close(self) -> None:
        """See `Site`. Ray ends our actors with us, and they what they started."""
        self._things.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _probe_request(workload: Path, hardware: Hardware, seed: int) -> ProbeRequest:
    return ProbeRequest(
        workload_path=str(workload.absolute()),
        working_dir=str(Path.cwd()),
        hardware=hardware,
        seed=seed,
    )
