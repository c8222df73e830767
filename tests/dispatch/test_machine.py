"""The machine is described from files and the driver, the same at every look."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.dispatch import machine
from autotune.dispatch.machine import detect_hardware
from autotune.dispatch.slot_actor import SlotPlace
from autotune.dispatch.slots import share_cores


def test_two_looks_give_the_same_fingerprint():
    """Nothing that changes from look to look is in the description."""
    assert detect_hardware().fingerprint == detect_hardware().fingerprint


def test_detection_imports_neither_torch_nor_ray():
    """`autotune doctor` stays fast."""
    code = (
        "import sys; from autotune.dispatch.machine import detect_hardware; detect_hardware();"
        "sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_limits_the_cores(tmp_path, files, cores):
    """Both generations of control groups are read; no quota leaves all allowed cores."""
    write_files(tmp_path, files)
    assert machine.num_cores(tmp_path) == (cores or machine.num_cores(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_containers_limit_is_its_memory(tmp_path, name):
    """A container sees its own limit, in whole GiB."""
    write_files(tmp_path, {name: str(2 * 2**30 + 5)})
    assert machine.host_memory_bytes(tmp_path) == 2 * 2**30


def test_cores_are_shared_among_the_slots_of_each_node():
    """Slots of one node get equal, disjoint shares; another node's cores are its own."""

    def place(node: str, cores: int) -> SlotPlace:
        return SlotPlace(
            node_id=node,
            address="127.0.0.1",
            visible_devices=None,
            machine_cores=frozenset(range(cores)),
        )

    shares = share_cores([place("a", 8), place("b", 2), place("a", 8)])
    assert shares == [frozenset({0, 1, 2, 3}), frozenset({0, 1}), frozenset({4, 5, 6, 7})]


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
