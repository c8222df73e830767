"""Whether the same modules run in every step: ranks that cut parameters wait for each other."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

_LOOK_S = 2.0  # at least two batches are looked at, whatever they take


def varies(model: nn.Module, run: Callable[[Any], object], batches: Iterable[Any]) -> bool:
    """Whether another batch makes other modules with parameters run, or in another order.

    So it is where experts are called for their own tokens only, layers are dropped at random, or
    a cell is called for each element of a sequence.

    Args:
        model: whose calls are noted.
        run: its forward pass, on one batch.
        batches: to compare.
    """
    until = time.perf_counter() + _LOOK_S
    first: list[int] | None = None
    for batch in batches:
        with _noted_calls(model) as calls:
            run(batch)
        if first is None:
            first = calls
        elif calls != first:
            return True
        elif time.perf_counter() > until:
            break
    return False


@contextlib.contextmanager
def _noted_calls(model: nn.Module) -> Iterator[list[int]]:
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
