"""Whether the same modules run in every step: ranks that cut parameters wait for each other."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from autotune.search_space.plan import Plan
from autotune.trials.applying.batch import moved
from autotune.trials.applying.loader import build_loader
from autotune.trials.feed import Feed
from autotune.trials.shapes import shapes_in
from autotune.trials.workload import Workload

NUM_BATCHES = 4
"""Batches that are compared."""

_NUM_SAMPLES = 2  # in each, where the model must compute values
_NUM_PASSES = 16  # over those batches in turn, as modules may be chosen at random
_TIME_S = 1.0  # after which no more passes begin; at least two are compared


def varies_with_shapes(workload: Workload, model: nn.Module, batches: Sequence[Any]) -> bool:
    """Whether the modules that run depend on shapes or on chance.

    Args:
        workload: whose loss is computed.
        model: on the meta device.
        batches: to compare.
    """
    return _varies(model, partial(workload.compute_loss, model), map(on_meta, batches))


def uneven_batches(batches: Sequence[Any]) -> bool:
    """Whether some batches hold tensors of other shapes than the first."""
    return any(shapes_in(batch) != shapes_in(batches[0]) for batch in batches)


def varies_with_values(workload: Workload, plan: Plan, seed: int) -> bool:
    """Whether the modules that run depend on values, as a few samples at a time show."""
    size = min(_NUM_SAMPLES, int(plan["batch_size"]))
    feed = Feed(build_loader(workload, Plan.of({**plan.values, "batch_size": size}), seed))
    model = workload.model(plan.values).train()
    batches = (feed.next() for _ in range(NUM_BATCHES))
    return _varies(model, partial(workload.compute_loss, model), batches)


def on_meta(batch: Any) -> Any:
    """Return the batch with its tensors on the meta device."""
    return moved(batch, torch.device("meta"), lambda tensor: tensor.to("meta"))


def _varies(model: nn.Module, run: Callable[[Any], object], batches: Iterable[Any]) -> bool:
    """Whether some pass runs other modules with parameters than the first, or in another order.

    So it is where experts are called for their own tokens only, layers are dropped at random, or
    a cell is called for each element of a sequence.
    """
    until = time.perf_counter() + _TIME_S
    first: list[int] | None = None
    for batch in itertools.islice(itertools.cycle(batches), _NUM_PASSES):
        with _calls_noted(model) as calls:
            run(batch)
        if first is None:
            first = calls
        elif calls != first:
            return True
        elif time.perf_counter() > until:
            break
    return False


@contextlib.contextmanager
def _calls_noted(model: nn.Module) -> Iterator[list[int]]:
    """Note the calls of modules that have parameters of their own, by their numbers."""
    calls: list[int] = []
    owners = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [
        module.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
        for number, module in enumerate(owners)
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
