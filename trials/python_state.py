"""What Python remembers from one training step to the next.

A step that the device replays runs no Python: a counter that the model keeps as a number would
stand still, a random number that the host draws would stay what it was. So what a step changes is
looked at before it is recorded.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.trials.failure import InvalidPlanError
from autotune.trials.sharding import ComputeLoss

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

State = Mapping[str, Any]


def python_state(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> State:
    """Return what a step could change in Python, by names that a user understands.

    Plain values (numbers, strings, and tuples, lists and dicts of them) in the attributes of the
    model's parts, in the optimizer's groups and in the files that define the model and the loss;
    and the states of the generators of random numbers on the host. Tensors are left out.
    """
    state: dict[str, Any] = {}
    for name, part in model.named_modules():
        owner = f"{type(part).__name__} {name}".strip()
        state |= {f"{key} of {owner}": value for key, value in _plain(vars(part))}
    for number, group in enumerate(optimizer.param_groups):
        state |= {f"{key} of the optimizer's group {number}": v for key, v in _plain(group)}
    for module in _defining(model, compute_loss):
        state |= {f"{key} of {module.__name__}": v for key, v in _plain(vars(module))}
    return {**state, **_generators()}


def check_unchanged(before: State, after: State) -> None:
    """Check that a step between both left no trace in Python.

    Raises:
        InvalidPlanError: when it did; with the first thing that changed.
    """
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if (old,) != (new,):  # in a tuple, what is the same object is equal: NaN, too
            raise InvalidPlanError(
                f"the step changes {name}{_shown(old, new)}, and a recorded step runs no Python; "
                "a tensor on the device can be part of it"
            )


def _plain(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name.startswith("__"):
            continue
        try:
            yield name, _frozen(value)
        except TypeError:
            continue


def _frozen(value: Any) -> Any:
    """Return the value with tuples for containers; a TypeError for what is not plain."""
    if isinstance(value, dict):
        return tuple((_frozen(key), _frozen(held)) for key, held in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(_frozen, value))
    if not isinstance(value, _PLAIN):
        raise TypeError
    return value


def _defining(model: nn.Module, compute_loss: ComputeLoss) -> Iterator[ModuleType]:
    """Yield the modules, other than torch's, that the parts' classes and the loss are from."""
    names = {type(part).__module__ for part in model.modules()}
    names.add(getattr(compute_loss, "__module__", None) or "")
    for name in sorted(names):
        if name.partition(".")[0] != "torch" and name in sys.modules:
            yield sys.modules[name]


def _generators() -> dict[str, Any]:
    states: dict[str, Any] = {
        "random (it draws random numbers)": random.getstate(),
        "torch's generator on the CPU (it draws random numbers)": bytes(
            torch.get_rng_state().numpy()
        ),
    }
    if "numpy.random" in sys.modules:
        kind, keys, *rest = sys.modules["numpy.random"].get_state()
        states["numpy.random (it draws random numbers)"] = (kind, bytes(keys), *rest)
    return states


def _shown(old: Any, new: Any) -> str:
    if isinstance(old, int | float | str) and isinstance(new, int | float | str):
        return f" from {old!r:.40} to {new!r:.40}"
    return ""
