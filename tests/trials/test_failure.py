"""From exceptions to outcomes."""

import errno
import os

import pytest
import torch
from torch._inductor.exc import InductorError

from autotune.trials.failure import classify, requested_bytes
from autotune.trials.result import Outcome

CASES = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), Outcome.OOM),
    (MemoryError(), Outcome.OOM),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), Outcome.OOM),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), Outcome.OOM),
    (RuntimeError("an error in my code"), Outcome.CRASH),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Outcome.INFRA),
    (ValueError("out of memory of the past"), Outcome.CRASH),
    (InductorError(RuntimeError("x"), None), Outcome.COMPILE_ERROR),
    (torch._dynamo.exc.Unsupported("print"), Outcome.COMPILE_ERROR),
]


@pytest.mark.parametrize(("error", "outcome"), CASES)
def test_an_exception_has_one_outcome(error, outcome):
    """By its type where torch has one, by its text only for runtime errors of allocators."""
    assert classify(error) is outcome


def test_the_memory_asked_for_is_kept():
    """It tells how far away a plan is."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
    assert requested_bytes(error) == 3 * 2**29
