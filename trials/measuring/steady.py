"""The rules of the measurement protocol, as functions of what has been timed so far."""

import math
import resource
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.trials.failure import DivergedError
from autotune.trials.interval import is_below, relative_half_width
from autotune.trials.request import Protocol
from autotune.trials.result import Measurement, Phase, Window

# Step times have settled when the last few differ by no more than this share of their median.
SETTLED_SPREAD, SETTLED_STEPS = 0.1, 3
TIMED_PHASES = (Phase.BUILD, Phase.FIRST_STEP, Phase.WARM_UP, Phase.MEASURE)
"""The phases whose seconds a measurement holds."""


def is_settled(times: Sequence[float], elapsed_s: float, protocol: Protocol) -> bool:
    """Whether warming up is over.

    Args:
        times: seconds of each step so far.
        elapsed_s: seconds since the first of them began.
        protocol: with the least number of steps, and the time cap.
    """
    if elapsed_s > protocol.max_warm_up_s:
        return True  # the minimum of steps would take too long
    if len(times) < max(SETTLED_STEPS, protocol.min_warm_up_steps):
        return False
    last = times[-SETTLED_STEPS:]
    return max(last) - min(last) <= SETTLED_SPREAD * statistics.median(last)


def is_enough(windows: Sequence[Window], protocol: Protocol) -> bool:
    """Whether the interval is narrow enough, or the time for windows is up."""
    is_out_of_time = sum(w.seconds for w in windows) >= protocol.max_measure_s
    if len(windows) < protocol.min_windows:
        # Two windows are enough for an interval where steps are very long.
        return len(windows) >= 2 and is_out_of_time
    half = relative_half_width([w.throughput for w in windows])
    return half <= protocol.target_interval or is_out_of_time


def is_hopeless(windows: Sequence[Window], interesting_above: float | None) -> bool:
    """Whether the throughput is surely below what is still interesting; None: never."""
    if interesting_above is None:
        return False
    return is_below([w.throughput for w in windows], interesting_above)


def whole_bursts(steps: float, burst: int) -> int:
    """Return the number of steps, rounded up so that a window holds whole bursts."""
    return burst * max(1, math.ceil(steps / burst))


def steps_of_burst(workers: int, accumulation: int) -> int:
    """Return the steps for which all workers together load once.

    Workers that wait for storage all finish at once: batches come in bursts of one per worker.
    """
    return max(1, workers) // math.gcd(max(1, workers), accumulation)


def summary(
    windows: Sequence[Window],
    protocol: Protocol,
    phases_s: Mapping[Phase, float],
    memory: Mapping[str, Any],
    **others: Any,
) -> Measurement:
    """Return the measurement of all ranks.

    Args:
        windows: at least two.
        protocol: that was followed.
        phases_s: seconds of `TIMED_PHASES`, of the worst rank.
        memory: peaks, of the worst rank; see `memory_peaks`.
        others: further fields of the measurement.
    """
    seconds = sum(w.seconds for w in windows)
    throughput = sum(w.samples for w in windows) / seconds
    half = relative_half_width([w.throughput for w in windows])
    phases: dict[str, Any] = {f"{phase.value}_s": phases_s[phase] for phase in TIMED_PHASES}
    step_ms = [1e3 * w.seconds / w.steps for w in windows]
    return Measurement(
        throughput=throughput,
        # Symmetric in the logarithm: a wide interval stays above zero.
        throughput_low=throughput / (1 + half),
        throughput_high=throughput * (1 + half),
        step_ms=statistics.median(step_ms),
        step_ms_spread=statistics.stdev(step_ms) / statistics.fmean(step_ms),
        data_wait_share=sum(w.data_wait_s for w in windows) / seconds,
        settled=half <= protocol.target_interval,
        windows=tuple(windows),
        **phases,
        **memory,
        **others,
    )


class MemoryPeaks:
    """The peaks of memory of this process: overall, and after `restart`."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._early_peak_bytes = 0
        self._early_retries = 0

    def restart(self) -> None:
        """Note the peaks of compilation and warm-up, and measure new ones from here on."""
        if self._on_gpu:
            self._early_peak_bytes = torch.cuda.max_memory_reserved()
            self._early_retries = _alloc_retries()
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, int]:
        """Return the peaks by the names of a measurement's fields."""
        host = {"peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        if not self._on_gpu:
            return host
        reserved = torch.cuda.max_memory_reserved()
        return host | {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": reserved,
            "peak_reserved_overall_bytes": max(reserved, self._early_peak_bytes),
            "alloc_retries": _alloc_retries() - self._early_retries,
        }


def _alloc_retries() -> int:
    return int(torch.cuda.memory_stats()["num_alloc_retries"])


def check_finite(loss: float) -> float:
    """Return the loss.

    Raises:
        DivergedError: when it is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss is {loss}: the training diverged; lower the learning rate, or look for "
            "overflow in this precision"
        )
    return loss
