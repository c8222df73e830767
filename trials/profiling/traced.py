"""Runs a few steps under torch's profiler."""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed
from autotune.trials.profiling.habits import is_profiled
from autotune.trials.profiling.parts import run_steps
from autotune.trials.profiling.trace import Operation, read_trace

_TRACED_S = 0.2  # of steps, without the profiler
_MAX_STEPS = 3  # as each event costs memory


def num_steps(step_s: float) -> int:
    """Return how many steps to trace: 0.2 s of them, and at most three."""
    return min(_MAX_STEPS, max(1, math.ceil(_TRACED_S / step_s)))


def trace_steps(
    step: Step, feed: Feed, steps: int, trace_path: str | None = None
) -> list[Operation]:
    """Train `steps` optimizer steps and return the operations that ran.

    Args:
        step: to train with, warmed up.
        feed: its batches.
        steps: to trace.
        trace_path: where to keep the Chrome trace; None: it is removed.
    """
    with tracing(activities(step.device.type), trace_path) as operations:
        run_steps(step, feed, steps)
    return operations


def activities(device_kind: str) -> list[ProfilerActivity]:
    """Return the kinds of events of a step on `cpu` or `cuda`."""
    on_device = [ProfilerActivity.CUDA] if device_kind == "cuda" else []
    return [ProfilerActivity.CPU, *on_device]


def check_no_profiler() -> None:
    """Check that no other profiler is on.

    Raises:
        LookupError: when one is: two at once end in a crash.
    """
    if is_profiled():
        raise LookupError("a profiler of your own is on, and torch runs only one at a time")


@contextlib.contextmanager
def tracing(
    kinds: Sequence[ProfilerActivity], trace_path: str | None = None
) -> Iterator[list[Operation]]:
    """Trace what runs inside; fill the list that is given with it at the end.

    Args:
        kinds: of events to trace; what runs must wait for the device at its end.
        trace_path: where to keep the Chrome trace; None: it is removed.
    """
    operations: list[Operation] = []
    with profile(activities=kinds) as profiler:
        yield operations
    with tempfile.TemporaryDirectory() as folder:
        path = trace_path or f"{folder}/trace.json"
        profiler.export_chrome_trace(path)
        operations += read_trace(Path(path))
