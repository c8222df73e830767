"""Whether children that are forked from this process can train like processes of their own."""

import ctypes
import sys
import threading
from pathlib import Path

# CUDA_ERROR_NOT_INITIALIZED of cuda.h, which calls return before cuInit. After cuInit, children of
# a fork cannot use CUDA.
_NOT_INITIALIZED = 3

_history = {"has_only_imported": False}


def note_that_only_imports_run() -> None:
    """Note that this process, and those forked from it until they do more, only import modules."""
    _history["has_only_imported"] = True


def is_new_with_torch() -> bool:
    """Whether this process has done nothing but import torch and other modules."""
    return _history["has_only_imported"] and "torch" in sys.modules and is_forkable()


def is_forkable() -> bool:
    """Whether this process has one Python thread and has not touched a CUDA device."""
    return threading.active_count() == 1 and not _has_touched_cuda()


def _has_touched_cuda() -> bool:
    if "libcuda.so" not in Path("/proc/self/maps").read_text():
        return False
    count = ctypes.c_int()
    answer: int = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    return answer != _NOT_INITIALIZED
