"""The family `host`: the threads that torch computes with on the CPU, and freed memory."""

import contextlib
import ctypes
from collections.abc import Iterator

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.settings import Setting
from autotune.trials.failure import InvalidPlanError

# Parameters of mallopt(3), with their defaults in glibc.
_TRIM_THRESHOLD, _TRIM_DEFAULT = -1, 128 * 1024
_MMAP_MAX, _MMAP_DEFAULT = -4, 65536
_NEVER_TRIM = -1


def process_settings(plan: Plan) -> list[Setting]:
    """Return the settings of threads and freed memory, where the plan names them."""
    settings: list[Setting] = []
    if "threads" in plan:
        settings.append(_num_threads(int(plan["threads"])))
    if plan.get("malloc", "system") == "keep":
        settings.append(_freed_memory_kept())
    return settings


@contextlib.contextmanager
def _num_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _freed_memory_kept() -> Iterator[None]:
    """Let the C library take all memory from its heap, and never give any of that back.

    By itself glibc asks the kernel for fresh pages for each large tensor, and the kernel clears
    them.

    Raises:
        InvalidPlanError: where the C library has no such settings.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        raise InvalidPlanError("malloc=keep needs glibc, whose mallopt() it sets")
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)
    try:
        yield
    finally:
        library.mallopt(_MMAP_MAX, _MMAP_DEFAULT)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_DEFAULT)
