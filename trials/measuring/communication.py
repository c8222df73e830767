"""Measures exposed communication: time in which ranks communicate and compute nothing."""

from collections.abc import Callable, Sequence

from torch.profiler import ProfilerActivity

from autotune.trials.profiling.breakdown import communicates
from autotune.trials.profiling.spans import Span, covered
from autotune.trials.profiling.traced import tracing


def traced_share(run_steps: Callable[[], None]) -> float | None:
    """Return the share of exposed communication on this rank's device while `run_steps` runs.

    Args:
        run_steps: runs some steps and waits for the device at their end.

    Returns:
        None when the trace holds no kernel.
    """
    with tracing([ProfilerActivity.CUDA]) as operations:
        run_steps()
    running = [op for op in operations if op.is_on_device]
    return exposed_share(
        communication=[op.span for op in running if communicates(op)],
        computation=[op.span for op in running if not communicates(op)],
    )


def exposed_share(communication: Sequence[Span], computation: Sequence[Span]) -> float | None:
    """Return the share of the time from first to last in which there is only communication.

    Spans may overlap, and be in any order and unit. None without any span.
    """
    everything = [*communication, *computation]
    if not everything:
        return None
    whole = max(end for _, end in everything) - min(start for start, _ in everything)
    exposed = covered(everything) - covered(computation)
    return exposed / whole if whole > 0 else None
