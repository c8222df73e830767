"""What the nodes of a cluster make together."""

import dataclasses

import pytest

from autotune.dispatch.devices import Node, cpu_devices, gpu_devices


@pytest.fixture
def node(cpu):
    """Return a function that makes a node with CPUs, or with GPUs of a name."""

    def make(num_cpus: int, num_gpus: int = 0, name: str = "H200") -> Node:
        kind = {"device_kind": "cuda", "device_name": name} if num_gpus else {}
        hardware = dataclasses.replace(cpu, num_cores=num_cpus, **kind)
        resources = {"CPU": num_cpus, f"accelerator_type:{name}": 1.0}
        return Node(resources={**resources, "GPU": num_gpus}, hardware=hardware)

    return make


def test_gpus_of_one_kind_are_counted_together(node):
    """Each device gets its share of all cores."""
    devices = gpu_devices([node(16, 4), node(16, 4)])
    assert devices.hardware.num_devices == 8
    assert devices.hardware.cores_per_device == 4
    assert devices.bundle == {"CPU": 1.0, "GPU": 1.0}


def test_of_several_kinds_the_most_frequent_is_used(node):
    """And Ray is told to use no other."""
    devices = gpu_devices([node(16, 2, "A100"), node(16, 4, "H200")])
    assert devices.hardware.device_name == "H200"
    assert devices.hardware.num_devices == 4
    assert devices.bundle["accelerator_type:H200"] > 0


@pytest.mark.parametrize(
    ("cpus", "num_ranks", "shares", "size"),
    [((8, 8), 1, 2, 8.0), ((8, 8), 4, 4, 4.0), ((8, 2), 3, 5, 2.0), ((1, 1), 5, 2, 1.0)],
)
def test_cpus_are_shared_out(node, cpus, num_ranks, shares, size):
    """A share for each node, or smaller ones until there are enough for the ranks."""
    devices = cpu_devices([node(count) for count in cpus], num_ranks)
    assert devices.hardware.num_devices == shares
    assert devices.bundle == {"CPU": size}
