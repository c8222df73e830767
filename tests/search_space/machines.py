"""Machines as plain values."""

from autotune.search_space.hardware import Hardware

GPU_MACHINE = Hardware(
    device_kind="cuda",
    device_name="NVIDIA H200",
    num_devices=1,
    device_memory_bytes=140 * 2**30,
    capability=(9, 0),
    num_cores=16,
    host_memory_bytes=128 * 2**30,
)
CPU_MACHINE = Hardware(
    device_kind="cpu",
    device_name="AMD EPYC",
    num_devices=1,
    device_memory_bytes=24 * 2**30,
    capability=None,
    num_cores=2,
    host_memory_bytes=24 * 2**30,
)
