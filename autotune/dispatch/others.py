"""How much of this machine other programs use, looked at before or after trials."""

import os
import time
from dataclasses import dataclass

import psutil
import pynvml

_INTERVAL_S = 0.5  # for which processors are looked at
_ENDING_S = 1.0  # for which processes that are ending may still be busy
_BUSY_KINDS = ("user", "nice", "system", "irq", "softirq", "steal")
_QUIET = 0.1  # busy cores up to which a machine is quiet


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


class Watch:
    """Looks at processors while this process prepares, and has no others yet."""

    def __init__(self) -> None:
        self._began_s, self._busy_s, self._own_s = _moment()

    def load(self) -> OthersLoad:
        """Return what others have used since this was made."""
        now_s, busy_s, own_s = _moment()
        others_s = (busy_s - self._busy_s) - (own_s - self._own_s)
        return OthersLoad(
            cores=max(0.0, others_s / max(now_s - self._began_s, 1e-3)),
            num_cores=len(_own_cores() or psutil.cpu_times(percpu=True)),
            device_share=_busiest_device_share(),
        )


def _moment() -> tuple[float, float, float]:
    """Return the time, and the seconds that cores and this process have been busy until now."""
    mine = _own_cores()
    times = enumerate(psutil.cpu_times(percpu=True))
    found = [one for core, one in times if mine is None or core in mine]
    busy = sum(getattr(one, kind, 0.0) for one in found for kind in _BUSY_KINDS)
    return time.monotonic(), busy, time.process_time()


def _own_cores() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def others_load() -> OthersLoad:
    """Return what is busy while this process sleeps for half a second, or for two.

    Where something is busy, the quieter of two looks counts: processes that autotune started may
    just be ending, and the driver of a GPU tells of the second before.
    """
    first = _look()
    if first.cores < _QUIET and not first.device_share:
        return first
    time.sleep(_ENDING_S)
    second = _look()
    shares = [look.device_share for look in (first, second) if look.device_share is not None]
    return OthersLoad(
        cores=min(first.cores, second.cores),
        num_cores=first.num_cores,
        device_share=min(shares, default=None),
    )


def _look() -> OthersLoad:
    mine = _own_cores()
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
