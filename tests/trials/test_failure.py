"""From exceptions to outcomes."""

import errno
import os

import pytest
import torch
from torch._inductor.exc import InductorError

from autotune.trials.cause import Cause
from autotune.trials.failure import classify, failed, one_line, requested_bytes
from autotune.trials.result import Outcome, Phase

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


def raised_from(origin, error):
    """Return `error` as code raises it that handles `origin`."""
    try:
        raise error from origin
    except RuntimeError as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "kein Platz"), Cause.DISK_FULL),
        (raised_from(OSError(errno.ENOSPC, "kein Platz"), RuntimeError("x")), Cause.DISK_FULL),
        (OSError(f"from a worker: OSError: [Errno 28] {FULL}"), Cause.DISK_FULL),
        (OSError(errno.EACCES, "no rights"), None),
        (RuntimeError(f"unable to allocate shared memory(shm): {FULL} (28)"), None),
        (torch.OutOfMemoryError(f"after: {FULL}"), None),
    ],
)
def test_a_full_disk_is_the_cause_by_its_number(error, cause, tmp_path):
    """Whatever its text; only what another process sent as text is told by that."""
    result = failed(error, Phase.BUILD, tmp_path / "model.py")
    assert result.cause is cause
    assert (result.outcome is Outcome.INFRA) is (cause is Cause.DISK_FULL)


def test_a_disk_that_a_worker_found_full_is_told_in_its_words():
    """The first line of what a loader's worker sends names no cause."""
    lines = ["Caught OSError in DataLoader worker process 0.", "Original Traceback", "  File"]
    told = one_line(OSError("\n".join([*lines, f"OSError: [Errno 28] {FULL}"])))
    assert told == f"OSError: [Errno 28] {FULL}"
    assert one_line(OSError(errno.ENOSPC, FULL)) == told


class MuteError(Exception):
    """An error whose own message fails."""

    def __str__(self):
        return self.args[7]


def test_an_error_that_cannot_tell_its_message_is_an_error_of_the_users():
    """It is told by its type."""
    assert classify(MuteError()) is Outcome.CRASH
    assert one_line(MuteError()) == "MuteError: its message could not be made: str() of it failed"


def test_a_message_as_long_as_a_tensor_is_shortened():
    """The table has one line for it."""
    told = one_line(ValueError("x" * 100_000))
    assert told.startswith("ValueError: xxx")
    assert told.endswith("... (99,512 characters more)")


def test_the_memory_asked_for_is_kept():
    """It tells how far away a plan is."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
    assert requested_bytes(error) == 3 * 2**29


TRACEBACKS = {
    "none of ours": ("def compute_loss(m, b): return m(b[0]).mean() * float('nan')", "", None),
    "the user's": ("def compute_loss(m, b): return undefined", "in compute_loss", "rank.py"),
    "torch's alone": (
        """
        class Failing(torch.optim.SGD):
            step = torch.Tensor.norm
        def build_optimizer(p):
            return Failing(p)
        """,
        "AttributeError",
        "rank.py",
    ),
}


@pytest.mark.parametrize("case", TRACEBACKS)
def test_a_traceback_holds_no_line_of_ours(case, write_workload, run_plan):
    """A message of our own has none; an error of torch's, only torch's lines."""
    source, shown, hidden = TRACEBACKS[case]
    result = run_plan(write_workload(source))
    assert result.error
    assert shown in (result.traceback or "")
    assert hidden is None or hidden not in (result.traceback or "")
    assert shown or not result.traceback


def test_a_folder_that_is_a_link_is_the_users(write_workload, run_plan, tmp_path):
    """So that an error in it counts as theirs, and is shown from their first line."""
    path = write_workload("def compute_loss(m, b): return undefined")
    (tmp_path / "sub").mkdir()
    for other in (tmp_path / "link" / path.name, tmp_path / "sub" / ".." / path.name):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path)
        result = run_plan(other)
        assert result.user_error
        assert "in compute_loss" in (result.traceback or "")
        assert "rank.py" not in (result.traceback or "")
