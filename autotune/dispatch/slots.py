"""The slots of a run: one for each device, each with a Ray actor that runs its trials."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.dispatch.devices import Devices
from autotune.dispatch.slot_actor import CONCURRENCY, SlotActor, SlotPlace
from autotune.dispatch.workload_folder import pack_folder, source_hash
from autotune.errors import ClusterError

PLACE_TIMEOUT_S = 60.0  # for Ray to start all slot actors


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A device of the run.

    Attributes:
        actor: Ray's handle of its `SlotActor`.
        place: its node and devices.
        cores: the CPU cores of that node that its trials may use.
    """

    actor: Any
    place: SlotPlace
    cores: frozenset[int]


class Slots:
    """The slots of a run, by index. They are reserved together; a lost one is started elsewhere.

    Args:
        devices: what to reserve, one device for each slot.
        token: put into the environment of every process that slots start.
        fork_address: a fork server on this machine that all slots use; None: one for each slot.
        workload_folder: copied to nodes that do not have it; None: every node has it.

    Raises:
        ClusterError: when the devices are not free.
    """

    def __init__(
        self,
        devices: Devices,
        *,
        token: str,
        fork_address: str | None = None,
        workload_folder: Path | None = None,
    ) -> None:
        self._devices = devices
        self._token = token
        self._imports: tuple[str, ...] = ()
        self._copier = None if workload_folder is None else FolderCopier(workload_folder)
        count = devices.hardware.num_devices
        # PACK: all devices or none, on as few nodes as possible.
        self._group = placement_group([dict(devices.bundle)] * count, strategy="PACK")
        actors = {index: self._start_actor(index) for index in range(count)}
        self._pending_places = {index: actor.place.remote() for index, actor in actors.items()}
        self._actors = actors
        self._open: dict[int, Slot] = {}
        self._fork_address = fork_address
        self._open_all()

    def _open_all(self) -> None:
        hardware = self._devices.hardware
        try:
            places = ray.get(list(self._pending_places.values()), timeout=PLACE_TIMEOUT_S)
        except RayError as error:
            raise ClusterError(
                f"Ray did not give {hardware.num_devices} {hardware.device_kind} device(s) within "
                f"{PLACE_TIMEOUT_S:g} s ({error}); free them, or check what `ray status` says"
            ) from error
        self._pending_places.clear()
        for index, cores in enumerate(share_cores(places)):
            self._open_slot(index, places[index], cores)

    def _start_actor(self, index: int) -> Any:
        needs = dict(self._devices.bundle)
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU"),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "concurrency_groups": CONCURRENCY,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index),
        }
        actor: Any = ray.remote(**options)
        return actor(SlotActor).remote(self._devices.hardware.device_kind)

    def _open_slot(self, index: int, place: SlotPlace, cores: frozenset[int]) -> None:
        actor = self._actors[index]
        actor.open.remote(self._token, cores, self._fork_address)
        actor.import_modules.remote(self._imports)
        if self._copier is not None:
            self._copier.copy_to(actor)
        self._open[index] = Slot(actor=actor, place=place, cores=cores)

    def __getitem__(self, index: int) -> Slot:
        return self._open[index]

    def import_modules(self, modules: tuple[str, ...]) -> None:
        """Import `modules` in the fork servers before the next trial; errors are ignored."""
        if modules == self._imports:
            return
        self._imports = modules
        for slot in self._open.values():
            slot.actor.import_modules.remote(modules)

    def replace(self, index: int) -> None:
        """Drop a slot whose actor is lost or hangs; another is opened when Ray has started it."""
        if (slot := self._open.pop(index, None)) is not None:
            ray.kill(slot.actor)  # also where it was stopped, which takes Ray 5 s
            self._request_actor(index)

    def _request_actor(self, index: int) -> None:
        self._actors[index] = self._start_actor(index)
        self._pending_places[index] = self._actors[index].place.remote()

    def num_open(self) -> int:
        """Return the number of usable slots; those on lost nodes are not."""
        self._open_started()
        return len(self._open)

    def _open_started(self) -> None:
        """Open the slots whose actors have started since the last call."""
        for index, pending in list(self._pending_places.items()):
            if ray.wait([pending], timeout=0)[0]:
                self._open_or_request(index, self._pending_places.pop(index))

    def _open_or_request(self, index: int, pending: Any) -> None:
        try:
            place = ray.get(pending)
            self._open_slot(index, place, self._free_cores(place))
        except RayError:  # its new node is lost, too
            self._request_actor(index)

    def _free_cores(self, place: SlotPlace) -> frozenset[int]:
        same_node = [slot for slot in self._open.values() if slot.place.node_id == place.node_id]
        used = frozenset[int]().union(*(slot.cores for slot in same_node))
        return place.machine_cores - used or place.machine_cores

    def choose(self, taken: Collection[int], count: int) -> list[int]:
        """Return the indices of `count` free slots: on one node if they fit, else on the fewest.

        Raises:
            RuntimeError: when fewer are free.
        """
        self._open_started()
        free = {index: slot for index, slot in self._open.items() if index not in taken}
        return choose({index: slot.place.node_id for index, slot in free.items()}, count)


class FolderCopier:
    """Copies the workload's folder to nodes that do not have it; packs it at most once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source_hash = source_hash(folder)
        self._packed: Any = None

    def copy_to(self, actor: Any) -> None:
        """Copy the folder to a slot's node, unless that has the same Python files.

        Raises:
            ClusterError: when the folder is too large to copy.
        """
        if ray.get(actor.source_hash.remote(str(self._folder))) == self._source_hash:
            return
        if self._packed is None:
            self._packed = ray.put(pack_folder(self._folder))
        actor.unpack.remote(str(self._folder), self._packed)


def choose(node_of_free: Mapping[int, str], count: int) -> list[int]:
    """Return `count` of the free slots, given as {index: node}; see `Slots.choose`."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in node_of_free.items():
        by_node[node].append(index)
    fitting = [indices for indices in by_node.values() if len(indices) >= count]
    if fitting:
        return min(fitting, key=len)[:count]
    largest_first = sorted(by_node.values(), key=len, reverse=True)
    chosen = [index for indices in largest_first for index in indices][:count]
    if len(chosen) < count:
        raise RuntimeError(
            f"{len(chosen)} devices are free, fewer than the {count} of a trial; "
            "wait for a trial to end"
        )
    return chosen


def visible_devices(places: Sequence[SlotPlace]) -> list[str | None]:
    """Return the CUDA_VISIBLE_DEVICES of each rank: all of the trial's devices on its node.

    They are in the order of the ranks, so that a rank's own device is `cuda:{local_rank}`, as
    under torchrun.
    """
    by_node: defaultdict[str, list[str]] = defaultdict(list)
    for place in places:
        if place.visible_devices is not None:
            by_node[place.node_id].append(place.visible_devices)
    return [",".join(by_node[place.node_id]) or None for place in places]


def share_cores(places: Sequence[SlotPlace]) -> list[frozenset[int]]:
    """Return the cores of each slot: an equal share of its machine's cores, at least one."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        by_node[place.node_id].append(index)
    shares = [place.machine_cores for place in places]
    for indices in by_node.values():
        cores = sorted(places[indices[0]].machine_cores)
        size = max(1, len(cores) // len(indices))
        for rank, index in enumerate(indices):
            start = rank * size % len(cores)
            shares[index] = frozenset(cores[start : start + size])
    return shares
