"""The devices that a server gives to jobs, and how a job is kept to its own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.dispatch.machine import detect_hardware
from autotune.errors import UsageError
from autotune.search_space.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of a server.

    Attributes:
        kind: `cuda`, `cpu` (a device is a share of the cores), or `cluster` (Ray gives the real
            devices; ids here only count them).
        ids: by which the store and people call them; of GPUs as in CUDA_VISIBLE_DEVICES.
        cores: of each device, by its id; empty where a job may use all.
    """

    kind: str
    ids: tuple[str, ...]
    cores: Mapping[str, tuple[int, ...]]

    def environment(self, taken: Sequence[str]) -> dict[str, str]:
        """Return the variables that keep a job to the devices it has taken."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if self.kind == "cuda" else {}

    def cores_of(self, taken: Sequence[str]) -> list[int]:
        """Return the cores for a job on these devices; empty: all."""
        return sorted(core for device in taken for core in self.cores.get(device, ()))

    def needed(self, gpus_per_trial: int) -> int:
        """Return how many devices a job needs; on a CPU one device runs all ranks of a trial."""
        return 1 if self.kind == "cpu" else gpus_per_trial


def find_devices(count: int | None, *, on_cluster: bool) -> Devices:
    """Return the devices of this machine, or `count` of a cluster.

    Args:
        count: how many to use; None: all GPUs, or the CPU as one device.
        on_cluster: jobs run on a Ray cluster.

    Raises:
        UsageError: when there are fewer, or a cluster's are not counted.
    """
    if on_cluster:
        if count is None:
            raise UsageError("--ray-address: say with --devices how many devices the cluster has")
        return Devices(kind="cluster", ids=tuple(map(str, range(count))), cores={})
    hardware = detect_hardware()
    if hardware.device_kind == "cuda":
        return _gpus(hardware, count)
    return _shares_of_cpu(count or 1, sorted(os.sched_getaffinity(0)))


def _gpus(hardware: Hardware, count: int | None) -> Devices:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = visible.split(",") if visible else list(map(str, range(hardware.num_devices)))
    if count is not None and count > hardware.num_devices:
        raise UsageError(
            f"--devices {count}: this machine has {hardware.num_devices} x "
            f"{hardware.device_name}; use {hardware.num_devices} or fewer"
        )
    kept = tuple(one.strip() for one in ids[: count or hardware.num_devices])
    # All GPUs share the cores, also those that the server leaves to others.
    shares = _split(sorted(os.sched_getaffinity(0)), hardware.num_devices)
    return Devices(kind="cuda", ids=kept, cores=dict(zip(kept, shares, strict=False)))


def _shares_of_cpu(count: int, cores: Sequence[int]) -> Devices:
    if count > len(cores):
        raise UsageError(
            f"--devices {count}: this machine has {len(cores)} cores, and each device needs one; "
            f"use {len(cores)} or fewer"
        )
    ids = tuple(f"cpu{number}" for number in range(count))
    return Devices(kind="cpu", ids=ids, cores=dict(zip(ids, _split(cores, count), strict=True)))


def _split(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return the cores in `count` parts of neighbours; all in each where there are too few."""
    if len(cores) < count:
        return [tuple(cores)] * count
    bounds = [len(cores) * number // count for number in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in pairwise(bounds)]
