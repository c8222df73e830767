"""How busy the GPUs of this machine are, as NVIDIA's management library (NVML) tells."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One GPU at this moment.

    Attributes:
        name: the model, with its number on this machine.
        utilisation: share of 1 of the last moments in which a kernel ran; None where the driver
            does not tell.
        used_bytes: memory in use, by whomever.
        total_bytes: memory that there is.
    """

    name: str
    utilisation: float | None
    used_bytes: int
    total_bytes: int


def devices_now() -> list[DeviceUse]:
    """Return the GPUs of this machine; none where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return list(_devices())
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _devices() -> Iterator[DeviceUse]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):  # a GPU in parts tells no memory as a whole
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            yield DeviceUse(
                name=f"{index}: {name.decode() if isinstance(name, bytes) else name}",
                utilisation=_utilisation(handle),
                used_bytes=int(memory.used),
                total_bytes=int(memory.total),
            )


def _utilisation(handle: object) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None
