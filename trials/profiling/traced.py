"""Runs a few steps under torch's profiler."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed
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
    on_device = [ProfilerActivity.CUDA] if step.device.type == "cuda" else []
    activities = [ProfilerActivity.CPU, *on_device]
    return trace(lambda: run_steps(step, feed, steps), activities, trace_path)


def trace(
    run: Callable[[], None],
    activities: Sequence[ProfilerActivity],
    trace_path: str | None = None,
) -> list[Operation]:
    """Return the operations that ran while `run` did.

    Args:
        run: must wait for the device at its end.
        activities: the kinds of events to record.
        trace_path: where to keep the Chrome trace; None: it is removed.
    """
    with profile(activities=activities) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = trace_path or f"{folder}/trace.json"
        profiler.export_chrome_trace(path)
        return read_trace(Path(path))
