"""Leaves the caches of language models out of a training that recomputes activations.

Models of transformers, such as GPT-2, hand their blocks a cache for keys and values, also in a
training, where nobody reads it: `config.use_cache` is true. Each block appends to it, and a block
that is run again for its gradients would do so twice. transformers' own checkpointing leaves the
cache out for the same reason (`GradientCheckpointingLayer`), and so does this, where it cannot be
part of the training.
"""

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from autotune.trials.failure import InvalidPlanError

_SWITCH, _CACHE = "use_cache", "past_key_values"  # arguments of a model's `forward`


def leave_out_caches(model: nn.Module) -> None:
    """Let the language models in `model` make no cache in training; evaluation keeps it.

    Their first call raises an `InvalidPlanError` where the workload itself hands over a cache or
    asks for one, as it may train on it.
    """
    for module in _caching(model):
        names = [*inspect.signature(module.forward).parameters]
        module.register_forward_pre_hook(partial(_without_cache, names), with_kwargs=True)


def _caching(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that make a cache unless they are told not to."""
    if getattr(getattr(module, "config", None), _SWITCH, None) is True:
        if _SWITCH in inspect.signature(module.forward).parameters:
            yield module
            return
    for child in module.children():
        yield from _caching(child)


def _without_cache(
    names: list[str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = dict(zip(names, args, strict=False)) | kwargs
    if not module.training or given.get(_SWITCH) is False:
        return None
    if _CACHE in given or given.get(_SWITCH):
        argument = _CACHE if _CACHE in given else f"{_SWITCH}=True"
        raise InvalidPlanError(
            f"{type(module).__name__} is called with {argument}, and blocks that are run again "
            f"would write to its cache twice; call it with {_SWITCH}=False in training, or use "
            "activation_checkpointing=none"
        )
    return args, {**kwargs, _SWITCH: False}
