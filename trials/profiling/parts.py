"""A training step taken apart: each part is marked, so that the profiler's trace shows it."""

import enum

import torch
from torch.profiler import record_function

from autotune.trials.applying.loader import Feed
from autotune.trials.applying.step import Step


class Part(enum.Enum):
    """A part of a step, in the order in which they follow each other.

    A recorded step has one part after its data, which ends it.
    """

    DATA = "data"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    REPLAY = "replay"


LAST = (Part.OPTIMIZER, Part.REPLAY)

TRACE_PREFIX = "autotune::"


def run_steps(step: Step, feed: Feed, steps: int) -> None:
    """Train `steps` optimizer steps, each part of them marked in the trace; wait at the end."""
    for _ in range(steps):
        if step.is_recorded:
            _replay(step, feed)
        else:
            _train(step, feed)
    if step.device.type == "cuda":
        torch.cuda.synchronize(step.device)


def _train(step: Step, feed: Feed) -> None:
    for _ in range(step.accumulation):
        with _marked(Part.DATA):
            batch = feed.next()
        with _marked(Part.COPY):
            batch = step.move(batch)
        with _marked(Part.FORWARD):
            loss = step.loss(batch)
        with _marked(Part.BACKWARD):
            step.backward(loss)
    with _marked(Part.OPTIMIZER):
        step.update()


def _replay(step: Step, feed: Feed) -> None:
    with _marked(Part.DATA):
        batch = feed.next()
    with _marked(Part.REPLAY):
        step(batch)


def _marked(part: Part) -> record_function:
    return record_function(TRACE_PREFIX + part.value)
