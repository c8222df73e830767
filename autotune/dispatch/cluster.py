"""What a Ray cluster of somebody else's has for trials."""

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

LOOK_TIMEOUT_S = 60.0
_ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A living node: its resources in Ray's books, and what it says of itself."""

    resources: Mapping[str, float]
    hardware: Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices that trials may use, and what Ray reserves for each of them."""

    hardware: Hardware
    bundle: Mapping[str, float]


def local_devices(hardware: Hardware) -> Devices:
    """Return the devices of this machine under a private Ray."""
    bundle = {"CPU": 1.0} | ({"GPU": 1.0} if hardware.device_kind == "cuda" else {})
    return Devices(hardware=hardware, bundle=bundle)


def cluster_devices(num_ranks: int) -> Devices:
    """Return the devices of the cluster that this process is connected to.

    GPUs of the most frequent kind where there are any, else equal shares of the nodes' CPUs.

    Raises:
        ClusterError: when a node does not answer, or there is nothing to run on.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    useful = [node for node in alive if node["Resources"].get("GPU")]
    useful = useful or [node for node in alive if node["Resources"].get("CPU", 0) >= 1]
    if not useful:
        raise ClusterError("the Ray cluster has neither GPUs nor CPUs; see `ray status`")
    nodes = _look_at([(node["NodeID"], node["Resources"]) for node in useful])
    if nodes[0].resources.get("GPU"):
        return gpu_devices(nodes)
    return cpu_devices(nodes, num_ranks)


def _look_at(found: Sequence[tuple[str, Mapping[str, float]]]) -> list[Node]:
    looks = [_look(node_id) for node_id, _ in found]
    try:
        hardware: list[Hardware] = ray.get(looks, timeout=LOOK_TIMEOUT_S)
    except RayError as error:
        raise ClusterError(
            f"a node of the Ray cluster could not say what it has ({error}); is autotune "
            "installed there, in the environment of Ray's workers?"
        ) from error
    return [Node(resources=r, hardware=h) for (_, r), h in zip(found, hardware, strict=True)]


def _look(node_id: str) -> Any:
    task: Any = ray.remote(_own_hardware)
    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return task.options(num_cpus=0, scheduling_strategy=here).remote()


def _own_hardware() -> Hardware:
    # Ray hides the devices from tasks that ask for none.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return detect_hardware()


def gpu_devices(nodes: Sequence[Node]) -> Devices:
    """Return the GPUs of the kind that there are most of."""
    kinds: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        kinds[node.hardware.device_name].append(node)
    chosen = max(kinds.values(), key=lambda same: sum(n.resources["GPU"] for n in same))
    bundle = {"CPU": 1.0, "GPU": 1.0}
    if len(kinds) > 1:
        # Ray's own mark for the kind: a sliver of it pins the bundle to such nodes.
        marks = [name for name in chosen[0].resources if name.startswith(_ACCELERATOR)]
        bundle |= dict.fromkeys(marks, 0.001)
    count = sum(int(node.resources["GPU"]) for node in chosen)
    return Devices(hardware=_together(chosen, count), bundle=bundle)


def cpu_devices(nodes: Sequence[Node], num_ranks: int) -> Devices:
    """Return as many equal shares of CPUs as `num_ranks` need, at least one for each node."""
    cpus = [int(node.resources["CPU"]) for node in nodes]
    sizes = range(min(cpus), 0, -1)
    size = next((s for s in sizes if sum(c // s for c in cpus) >= num_ranks), 1)
    count = sum(c // size for c in cpus)
    return Devices(hardware=_together(nodes, count), bundle={"CPU": float(size)})


def _together(nodes: Sequence[Node], num_devices: int) -> Hardware:
    """Return the first node's hardware with the devices and cores of all."""
    first = nodes[0].hardware
    return replace(
        first,
        num_devices=num_devices,
        device_memory_bytes=min(node.hardware.device_memory_bytes for node in nodes),
        host_memory_bytes=min(node.hardware.host_memory_bytes for node in nodes),
        # Shared out evenly; nodes may differ.
        num_cores=num_devices * max(1, sum(n.hardware.num_cores for n in nodes) // num_devices),
    )
