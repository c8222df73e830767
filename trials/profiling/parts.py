"""Runs training steps with each of their parts marked, so that the profiler's trace shows it."""

import enum

import torch
from torch.profiler import record_function

from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed


class Part(enum.Enum):
    """The parts of a step, in order. A recorded step has only `data` and `replay`."""

    DATA = "data"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    REPLAY = "replay"


LAST = (Part.OPTIMIZER, Part.REPLAY)
"""The parts that end a step."""

TRACE_PREFIX = "autotune::"
"""Of the names of parts in a trace."""


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
