"""How much of this machine other programs use, looked at while autotune itself does nothing."""

import os
from dataclasses import dataclass

import psutil
import pynvml

_INTERVAL_S = 0.5  # for which processors are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersLoad:
    """What other programs use.

    Attributes:
        cores: busy ones of those that this process may use.
        num_cores: of these.
        device_share: part of the time that the busiest GPU computed; None without a GPU.
    """

    cores: float
    num_cores: int
    device_share: float | None = None


def others_load() -> OthersLoad:
    """Look for half a second, in which this process sleeps, at what is busy."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    busy = psutil.cpu_percent(interval=_INTERVAL_S, percpu=True)
    used = [share for core, share in enumerate(busy) if mine is None or core in mine] or busy
    return OthersLoad(
        cores=sum(used) / 100, num_cores=len(used), device_share=_busiest_device_share()
    )


def _busiest_device_share() -> float | None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        shares = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    except pynvml.NVMLError:
        return None  # some devices, such as parts of one, do not tell
    finally:
        pynvml.nvmlShutdown()
    return max(shares, default=None)
