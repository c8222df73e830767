"""Whether a process may be forked, and its children go on as if they had started afresh."""

import ctypes
import threading
from pathlib import Path

# cuda.h: what every call answers before cuInit. After it, children of a fork cannot use CUDA.
_NOT_INITIALIZED = 3


def is_forkable() -> bool:
    """Whether this process has one Python thread and has not touched a CUDA device."""
    return threading.active_count() == 1 and not _has_touched_cuda()


def _has_touched_cuda() -> bool:
    if "libcuda.so" not in Path("/proc/self/maps").read_text():
        return False
    count = ctypes.c_int()
    answer: int = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    return answer != _NOT_INITIALIZED
