"""Whether a step on a CPU is faster with one thread: the others may only wait for each other."""

import contextlib
import statistics
import time
from collections.abc import Iterator

import torch

from autotune.trials.profiling.measured import Measured

_LONG_S = 0.5  # of a step, from which one is enough


def num_looks(measured: Measured) -> int:
    """Return how many steps to look at with one thread; 0 where there is nothing to find out."""
    if measured.device.type != "cpu" or torch.get_num_threads() < 2:
        return 0
    return 1 if measured.step_s > _LONG_S else 3


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Stopwatch:
    """Notes how long steps take; the one in the middle counts, as single ones vary."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._steps_s: list[float] = []

    def step_ended(self) -> None:
        """Note that a step has ended, and that the next one begins."""
        now = time.perf_counter()
        self._steps_s.append(now - self._since)
        self._since = now

    def speedup(self, measured: Measured) -> float:
        """Return the speed of these steps over that of the measured ones."""
        return measured.step_s / statistics.median(self._steps_s)
