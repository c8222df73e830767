"""Finds the devices of a Ray cluster that trials can run on."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.dispatch.machine import detect_hardware
from autotune.errors import ClusterError
from autotune.search_space.hardware import Hardware

DETECT_TIMEOUT_S = 60.0  # for all nodes to detect their hardware
_ACCELERATOR = "accelerator_type:"  # begins the name of Ray's resource for a kind of GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster: its resources as Ray counts them, and the hardware it detected."""

    resources: Mapping[str, float]
    hardware: Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices that trials may use; `bundle` is what Ray reserves for each."""

    hardware: Hardware
    bundle: Mapping[str, float]


def local_devices(hardware: Hardware) -> Devices:
    """Return the devices of this machine under a private Ray."""
    bundle = {"CPU": 1.0} | ({"GPU": 1.0} if hardware.device_kind == "cuda" else {})
    return Devices(hardware=hardware, bundle=bundle)


def cluster_devices(num_ranks: int) -> Devices:
    """Return the devices of the cluster that this process is connected to.

    These are the GPUs of the most frequent kind, or without GPUs equal shares of the CPUs.

    Raises:
        ClusterError: when a node does not answer, or the cluster has neither GPUs nor CPUs.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    usable = [node for node in alive if node["Resources"].get("GPU")]
    usable = usable or [node for node in alive if node["Resources"].get("CPU", 0) >= 1]
    if not usable:
        raise ClusterError(
            "the Ray cluster has neither GPUs nor CPUs; check what `ray status` says"
        )
    nodes = _detect([(node["NodeID"], node["Resources"]) for node in usable])
    if nodes[0].resources.get("GPU"):
        return gpu_devices(nodes)
    return cpu_devices(nodes, num_ranks)


def _detect(nodes: Sequence[tuple[str, Mapping[str, float]]]) -> list[Node]:
    pending = [_start_detection(node_id) for node_id, _ in nodes]
    try:
        hardware: list[Hardware] = ray.get(pending, timeout=DETECT_TIMEOUT_S)
    except RayError as error:
        raise ClusterError(
            f"a node of the Ray cluster could not detect its hardware ({error}); check that "
            "autotune is installed there, in the environment of Ray's workers"
        ) from error
    return [Node(resources=r, hardware=h) for (_, r), h in zip(nodes, hardware, strict=True)]


def _start_detection(node_id: str) -> Any:
    task: Any = ray.remote(_own_hardware)
    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return task.options(num_cpus=0, scheduling_strategy=here).remote()


def _own_hardware() -> Hardware:
    # Ray hides the devices from tasks that ask for none.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return detect_hardware()


def gpu_devices(nodes: Sequence[Node]) -> Devices:
    """Return the GPUs of the most frequent kind."""
    kinds: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        kinds[node.hardware.device_name].append(node)
    chosen = max(kinds.values(), key=lambda nodes: sum(n.resources["GPU"] for n in nodes))
    bundle = {"CPU": 1.0, "GPU": 1.0}
    if len(kinds) > 1:
        # A small amount of Ray's resource for the kind keeps the bundle on its nodes.
        of_kind = [name for name in chosen[0].resources if name.startswith(_ACCELERATOR)]
        bundle |= dict.fromkeys(of_kind, 0.001)
    count = sum(int(node.resources["GPU"]) for node in chosen)
    return Devices(hardware=_merged(chosen, count), bundle=bundle)


def cpu_devices(nodes: Sequence[Node], num_ranks: int) -> Devices:
    """Return at least `num_ranks` equal shares of the CPUs, and at least one for each node."""
    cpus = [int(node.resources["CPU"]) for node in nodes]
    sizes = range(min(cpus), 0, -1)
    size = next((s for s in sizes if sum(c // s for c in cpus) >= num_ranks), 1)
    count = sum(c // size for c in cpus)
    return Devices(hardware=_merged(nodes, count), bundle={"CPU": float(size)})


def _merged(nodes: Sequence[Node], num_devices: int) -> Hardware:
    """Return the first node's hardware, with the devices and cores of all nodes."""
    first = nodes[0].hardware
    return replace(
        first,
        num_devices=num_devices,
        device_memory_bytes=min(node.hardware.device_memory_bytes for node in nodes),
        host_memory_bytes=min(node.hardware.host_memory_bytes for node in nodes),
        # The same number for each device, although nodes may differ.
        num_cores=num_devices * max(1, sum(n.hardware.num_cores for n in nodes) // num_devices),
    )
