"""Runs a few steps under torch's profiler."""

import math
import tempfile
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from autotune.trials.loader import Feed
from autotune.trials.profiling.parts import in_trace, run_steps
from autotune.trials.profiling.trace import Trace, read_trace
from autotune.trials.step import Step

_TRACED_S = 0.2
_MOST_STEPS = 5


def num_steps(step_s: float) -> int:
    """Return how many steps to trace: 0.2 s of them, at most five, as each event costs memory."""
    return min(_MOST_STEPS, max(1, math.ceil(_TRACED_S / step_s)))


def trace_steps(step: Step, feed: Feed, steps: int, trace_path: str | None = None) -> Trace:
    """Train one step that is thrown away, then `steps`; return the trace of these.

    Args:
        step: to train with.
        feed: its batches.
        steps: optimizer steps to trace.
        trace_path: where the Chrome trace stays; None: it is read and removed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(trace_path or f"{folder}/trace.json")
        _record(step, feed, steps, path)
        return read_trace(path)


def _record(step: Step, feed: Feed, steps: int, path: Path) -> None:
    on_device = step.device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])],
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        acc_events=True,  # without it a warning says that events of earlier cycles are dropped
    ) as profiler:
        for _ in range(1 + steps):
            run_steps(step, feed, 1, in_trace)
            profiler.step()
