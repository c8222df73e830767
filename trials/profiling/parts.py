"""A training step taken apart: each part inside a mark, so that its time can be told."""

import contextlib
import enum
import time
from collections.abc import Callable, Iterator

import torch
from torch.profiler import record_function

from autotune.trials.loader import Feed
from autotune.trials.step import Step


class Part(enum.Enum):
    """A part of a step, in the order in which they follow each other."""

    DATA = "data"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


Mark = Callable[[Part], contextlib.AbstractContextManager[object]]

TRACE_PREFIX = "autotune::"


def run_steps(step: Step, feed: Feed, steps: int, mark: Mark) -> None:
    """Train `steps` optimizer steps, each part of them inside `mark(part)`; wait at the end."""
    for _ in range(steps):
        for _ in range(step.accumulation):
            with mark(Part.DATA):
                batch = feed.next()
            with mark(Part.COPY):
                batch = step.move(batch)
            with mark(Part.FORWARD):
                loss = step.loss(batch)
            with mark(Part.BACKWARD):
                step.backward(loss)
        with mark(Part.OPTIMIZER):
            step.update()
    if step.device.type == "cuda":
        torch.cuda.synchronize(step.device)


def in_trace(part: Part) -> record_function:
    """Mark a part in the profiler's trace."""
    return record_function(TRACE_PREFIX + part.value)


class Stopwatch:
    """Marks that add up the host's seconds in each part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(Part, 0.0)

    @contextlib.contextmanager
    def mark(self, part: Part) -> Iterator[None]:
        """Time a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start
