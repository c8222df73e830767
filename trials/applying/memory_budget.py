"""A budget for the activations that compiled code keeps: it computes the rest again.

The compiler chooses what to compute again when it divides what it traced into a forward and a
backward pass. It may choose random numbers, too, and then draws others in the backward pass: with
dropout the gradients are wrong, and nothing says so
(https://github.com/pytorch/pytorch/issues/190758). Here random numbers are always kept.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from autotune.trials.applying.settings import attribute_set, compiled_apart

_CHOICE = "choose_saved_values_set"


@contextlib.contextmanager
def memory_budget(budget: float) -> Iterator[None]:
    """Let compiled code keep a part of the activations that it would keep by itself.

    Args:
        budget: at 0 it would keep only the inputs of what is compiled as one, at 1 whatever saves
            the most time.
    """
    from torch._functorch import config, partitioners  # noqa: PLC0415  eager plans need no compiler

    choose = getattr(partitioners, _CHOICE)
    with (
        attribute_set(config, "activation_memory_budget", value=budget),
        attribute_set(partitioners, _CHOICE, value=_keeping_random_numbers(choose)),
        compiled_apart("random numbers kept"),
    ):
        yield


def _keeping_random_numbers(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiler's choice for a traced graph, with what draws random numbers kept."""

    @functools.wraps(choose)
    def chosen(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> Any:
        for node in graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return choose(graph, *args, **kwargs)

    return chosen
