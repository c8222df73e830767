"""How much of a step the ranks spend in communication that hides behind no computation."""

from collections.abc import Callable, Sequence

from torch.autograd import DeviceType  # type: ignore[attr-defined]  # documented, not exported
from torch.profiler import ProfilerActivity, profile

from autotune.trials.profiling.spans import Span, covered


def traced_share(run_steps: Callable[[], None]) -> float | None:
    """Return the share of exposed communication on this rank's device while `run_steps` runs.

    Args:
        run_steps: runs some steps and waits for the device at their end.

    Returns:
        None when the trace holds no kernel.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run_steps()
    # Annotations span the kernels below them, idle time included.
    kernels = [
        event
        for event in profiler.events() or ()
        if event.device_type is DeviceType.CUDA and not event.is_user_annotation
    ]
    spans = {True: list[Span](), False: list[Span]()}
    for kernel in kernels:
        span = (kernel.time_range.start, kernel.time_range.end)
        spans[_communicates(kernel.name)].append(span)
    return exposed_share(communication=spans[True], computation=spans[False])


def exposed_share(communication: Sequence[Span], computation: Sequence[Span]) -> float | None:
    """Return the part of the time from first to last in which only communication goes on.

    Intervals may overlap, and come in any order and unit; None for none at all.
    """
    everything = [*communication, *computation]
    if not everything:
        return None
    whole = max(end for _, end in everything) - min(start for start, _ in everything)
    exposed = covered(everything) - covered(computation)
    return exposed / whole if whole > 0 else None


def _communicates(kernel: str) -> bool:
    return kernel.startswith(("ncclDevKernel", "ncclKernel"))
