"""From exceptions to outcomes."""

import errno
import os

import pytest
import torch
from torch._inductor.exc import InductorError

from autotune.trials.failure import classify, one_line, requested_bytes
from autotune.trials.result import Outcome

FULL = os.strerror(errno.ENOSPC)
CASES = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), Outcome.OOM),
    (MemoryError(), Outcome.OOM),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), Outcome.OOM),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), Outcome.OOM),
    (RuntimeError("an error in my code"), Outcome.CRASH),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Outcome.INFRA),
    (RuntimeError(f"unable to allocate shared memory(shm): {FULL} (28)"), Outcome.CRASH),
    (ValueError("out of memory of the past"), Outcome.CRASH),
    (InductorError(RuntimeError("x"), None), Outcome.COMPILE_ERROR),
    (torch._dynamo.exc.Unsupported("print"), Outcome.COMPILE_ERROR),
]


@pytest.mark.parametrize(("error", "outcome"), CASES)
def test_an_exception_has_one_outcome(error, outcome):
    """By its type where torch has one, by its text only for runtime errors of allocators."""
    assert classify(error) is outcome


def test_a_disk_that_a_worker_found_full_is_told_in_its_words():
    """The first line of what a loader's worker sends names no cause."""
    lines = ["Caught OSError in DataLoader worker process 0.", "Original Traceback", "  File"]
    told = one_line(OSError("\n".join([*lines, f"OSError: [Errno 28] {FULL}"])))
    assert told == f"OSError: [Errno 28] {FULL}"
    assert one_line(OSError(errno.ENOSPC, FULL)) == told


def test_the_memory_asked_for_is_kept():
    """It tells how far away a plan is."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
    assert requested_bytes(error) == 3 * 2**29
