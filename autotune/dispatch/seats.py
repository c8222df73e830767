"""Where trials run: one seat for each device, with its slot actor."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.dispatch.cluster import Devices
from autotune.dispatch.parcel import digest, pack
from autotune.dispatch.slot import CONCURRENCY, Slot, SlotPlace
from autotune.errors import ClusterError

PLACE_TIMEOUT_S = 60.0
REPLACE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A slot actor, where it is, and the cores of its trials."""

    slot: Any
    place: SlotPlace
    cores: frozenset[int]


class Seats:
    """The seats of a run, claimed together; one whose slot was lost is opened anew.

    Args:
        devices: to claim, one for each seat.
        token: marks all that is started.
        fork_address: of a fork server of this machine for all seats; None: each has its own.
        workload_folder: which travels to nodes that lack it; None: every node has it.

    Raises:
        ClusterError: when the cluster does not have them free.
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
        self._preload: tuple[str, ...] = ()
        self._shipper = None if workload_folder is None else Shipper(workload_folder)
        count = devices.hardware.num_devices
        # All devices are claimed or none, packed on as few nodes as have them.
        self._group = placement_group([dict(devices.bundle)] * count, strategy="PACK")
        slots = {index: self._start_slot(index) for index in range(count)}
        self._arriving = {index: slot.place.remote() for index, slot in slots.items()}
        self._slots = slots
        self._seats: dict[int, Seat] = {}
        self._fork_address = fork_address
        self._open_all()

    def _open_all(self) -> None:
        hardware = self._devices.hardware
        try:
            places = ray.get(list(self._arriving.values()), timeout=PLACE_TIMEOUT_S)
        except RayError as error:
            raise ClusterError(
                f"Ray did not give {hardware.num_devices} {hardware.device_kind} device(s) within "
                f"{PLACE_TIMEOUT_S:g} s ({error}); free them, or check what `ray status` says"
            ) from error
        self._arriving.clear()
        for index, cores in enumerate(share_cores(places)):
            self._open(index, places[index], cores)

    def _start_slot(self, index: int) -> Any:
        needs = dict(self._devices.bundle)
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU"),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "concurrency_groups": CONCURRENCY,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index),
        }
        actor: Any = ray.remote(**options)
        return actor(Slot).remote(self._devices.hardware.device_kind)

    def _open(self, index: int, place: SlotPlace, cores: frozenset[int]) -> None:
        slot = self._slots[index]
        slot.open.remote(self._token, cores, self._fork_address)
        slot.prepare.remote(self._preload)
        if self._shipper is not None:
            self._shipper.ship(slot)
        self._seats[index] = Seat(slot=slot, place=place, cores=cores)

    def __getitem__(self, index: int) -> Seat:
        return self._seats[index]

    def preload(self, modules: tuple[str, ...]) -> None:
        """Import `modules` where trials start, so that they need not; errors do not matter."""
        if modules == self._preload:
            return
        self._preload = modules
        for seat in self._seats.values():
            seat.slot.prepare.remote(modules)

    def replace(self, index: int) -> None:
        """Give up a seat whose slot is lost, and give Ray a moment to find another place for it.

        What comes later is opened when it comes.
        """
        if self._seats.pop(index, None) is not None:
            self._ask_again(index)
            ray.wait([self._arriving[index]], timeout=REPLACE_TIMEOUT_S)
            self._admit()

    def _ask_again(self, index: int) -> None:
        self._slots[index] = self._start_slot(index)
        self._arriving[index] = self._slots[index].place.remote()

    def num_open(self) -> int:
        """Return how many there are now; those on lost nodes are missing."""
        self._admit()
        return len(self._seats)

    def _admit(self) -> None:
        """Open the seats that Ray has found a place for meanwhile."""
        arriving = list(self._arriving.items())
        for index, arrival in arriving:
            if ray.wait([arrival], timeout=0)[0]:
                self._arrive(index, self._arriving.pop(index))

    def _arrive(self, index: int, arrival: Any) -> None:
        try:
            place = ray.get(arrival)
            self._open(index, place, self._free_cores(place))
        except RayError:  # its new node is gone, too
            self._ask_again(index)

    def _free_cores(self, place: SlotPlace) -> frozenset[int]:
        others = [seat for seat in self._seats.values() if seat.place.node_id == place.node_id]
        used = frozenset[int]().union(*(seat.cores for seat in others))
        return place.machine_cores - used or place.machine_cores

    def choose(self, taken: Collection[int], count: int) -> list[int]:
        """Return `count` free seats: on one node where they fit, else on the fewest nodes.

        Raises:
            RuntimeError: when fewer are free.
        """
        self._admit()
        free = {index: seat for index, seat in self._seats.items() if index not in taken}
        return choose({index: seat.place.node_id for index, seat in free.items()}, count)


class Shipper:
    """Sends the workload's folder to the slots of nodes that lack it, packed at most once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digest = digest(folder)
        self._parcel: Any = None

    def ship(self, slot: Any) -> None:
        """Send the folder to one slot, unless its node has the same.

        Raises:
            ClusterError: when the folder is too large to travel.
        """
        if ray.get(slot.digest.remote(str(self._folder))) == self._digest:
            return
        if self._parcel is None:
            self._parcel = ray.put(pack(self._folder))
        slot.unpack.remote(str(self._folder), self._parcel)


def choose(free: Mapping[int, str], count: int) -> list[int]:
    """Return `count` of the free seats, given with their nodes; see `Seats.choose`."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in free.items():
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
    """Return for each rank all of its trial's devices on its node, as under torchrun.

    In the order of the ranks: the device of a rank is the one with its local rank's number.
    """
    by_node: defaultdict[str, list[str]] = defaultdict(list)
    for place in places:
        if place.visible_devices is not None:
            by_node[place.node_id].append(place.visible_devices)
    return [",".join(by_node[place.node_id]) or None for place in places]


def share_cores(places: Sequence[SlotPlace]) -> list[frozenset[int]]:
    """Return each slot's cores: an equal share, at least one, of those of its machine."""
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
