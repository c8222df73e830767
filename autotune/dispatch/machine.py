"""Detects this machine's hardware, without importing torch or Ray."""

import os
import platform
import re
from importlib import metadata, util
from pathlib import Path
from typing import Any

import psutil
import pynvml

from autotune.errors import UsageError
from autotune.search_space.hardware import Hardware
from autotune.trials.processor import processor_name
from autotune.units import GIB

# Host memory is rounded to this: on some virtual machines the total grows while memory is used,
# and the hardware must compare equal to that of an earlier run.
HOST_MEMORY_STEP_BYTES = GIB
# Where Linux mounts the limits of a container.
CGROUP = Path("/sys/fs/cgroup")


def detect_hardware() -> Hardware:
    """Return the hardware that trials on this machine will see.

    Raises:
        UsageError: when CUDA_VISIBLE_DEVICES names no device that exists.
    """
    if not torch_is_built_for_cuda():
        return _cpu_machine()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return _cpu_machine()  # no driver, so no device
    try:
        handles = _visible_handles(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return _cuda_machine(handles) if handles else _cpu_machine()
    finally:
        pynvml.nvmlShutdown()


def _cpu_machine() -> Hardware:
    memory = host_memory_bytes()
    return Hardware(
        device_kind="cpu",
        device_name=processor_name(),
        num_devices=1,
        device_memory_bytes=memory,
        capability=None,
        num_cores=num_cores(),
        host_memory_bytes=memory,
        versions=_versions(),
    )


def _cuda_machine(handles: list[Any]) -> Hardware:
    names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    totals = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handles[0])
    driver = _text(pynvml.nvmlSystemGetDriverVersion())
    return Hardware(
        device_kind="cuda",
        device_name=names[0],
        num_devices=len(handles),
        device_memory_bytes=min(totals),
        capability=(major, minor),
        num_cores=num_cores(),
        host_memory_bytes=host_memory_bytes(),
        versions=_versions(("cuda_driver", driver)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _visible_handles(visible: str | None) -> list[Any]:
    count = pynvml.nvmlDeviceGetCount()
    if visible is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    return [_handle(name.strip()) for name in visible.split(",") if _names_device(name.strip())]


def _names_device(name: str) -> bool:
    return name not in ("", "-1", "NoDevFiles")


def _handle(name: str) -> Any:
    try:
        if name.isdigit():
            return pynvml.nvmlDeviceGetHandleByIndex(int(name))
        return pynvml.nvmlDeviceGetHandleByUUID(name.encode())
    except pynvml.NVMLError as error:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES names {name!r}, which this machine does not have ({error}); "
            "unset it, or name devices as `nvidia-smi -L` lists them"
        ) from error


def used_device_bytes(visible: str) -> int:
    """Return the memory in use on devices, named as in CUDA_VISIBLE_DEVICES."""
    pynvml.nvmlInit()
    try:
        handles = _visible_handles(visible)
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def torch_is_built_for_cuda() -> bool:
    """Return whether the installed torch is a CUDA build, without importing it."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    text = (Path(spec.origin).parent / "version.py").read_text()
    return re.search(r"^cuda\b.*=\s*['\"]", text, re.MULTILINE) is not None


def num_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of cores this process may use, by affinity and by CPU quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cpu_quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    if (cgroup / "cpu.max").exists():
        quota, period = (cgroup / "cpu.max").read_text().split()
    elif (cgroup / "cpu" / "cpu.cfs_quota_us").exists():
        quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def host_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return the memory of the machine or of its container, rounded to whole GiB."""
    total = psutil.virtual_memory().total
    limit = min([total, *_memory_limits(cgroup)])
    return max(1, round(limit / HOST_MEMORY_STEP_BYTES)) * HOST_MEMORY_STEP_BYTES


def _memory_limits(cgroup: Path) -> list[int]:
    files = (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes")
    texts = [file.read_text().strip() for file in files if file.exists()]
    return [int(text) for text in texts if text != "max"]


def _versions(*more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    known = [("python", platform.python_version()), *more]
    known += [(name, metadata.version(name)) for name in ("torch",) if util.find_spec(name)]
    return tuple(sorted(known))
