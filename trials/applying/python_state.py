"""What Python remembers from one training step to the next.

A step that the device replays runs no Python: a counter that the model keeps as a number would
stand still, a random number that the host draws would stay what it was, and a tensor that takes
the place of another would never be read. So what a step changes is looked at before it is
recorded. What changes less often than in each step is not seen.
"""

import collections
import itertools
import pickle
import random
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.trials.applying.ranks import ComputeLoss
from autotune.trials.failure import InvalidPlanError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (tuple, list, set, frozenset, collections.deque)
_OF_PYTHON = ("builtins", "collections")
_LOOKED_INTO = (nn.Module, Optimizer, types.SimpleNamespace)  # of objects that are no user's
_FUNCTIONS = (types.FunctionType, types.MethodType)
# What is looked at of one container, in entries, and of one array, in bytes: a file may hold a
# whole dataset.
_MANY, _LARGE = 10_000, 2**20
# Whose classes and objects are not the user's: by name, and by the folder they are in.
_LIBRARIES = frozenset({"torch", "numpy", "autotune"})
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))

State = Mapping[str, Any]


def python_state(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> State:
    """Return what a step could change in Python, by names that a user understands.

    Values and tensors in the attributes of the model's parts, in the optimizer and in the files
    that define them and the loss, also inside of containers, objects, classes and closures; and
    the states of the generators of random numbers on the host. Of a tensor on a device it is
    which one it is, not what it holds: a recorded step changes that, too.
    """
    look = _Look()
    for name, part in reversed([*model.named_modules()]):  # what is inside gets the shorter name
        look.at(f"{type(part).__name__} {name}".strip(), part)
    look.at("the optimizer", optimizer)
    look.at("compute_loss", compute_loss)
    for module in _defining(model, optimizer, compute_loss):
        look.entries(module.__name__, vars(module))
    return {**look.found, **_generators()}


def check_unchanged(before: State, after: State) -> None:
    """Check that a step between both left no trace in Python.

    Raises:
        InvalidPlanError: when it did; with the first thing that changed.
    """
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if not _is_same(old, new):
            raise InvalidPlanError(
                f"the step changes {name}{_shown(old, new)}, and a recorded step runs no Python; "
                "keep it in a tensor on the device that is updated in place, or use cuda_graph=off"
            )


class _Look:
    """Follows references from what belongs to the user; `found` is what they lead to."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()

    def at(self, name: str, value: Any) -> None:
        """Look at a value and at what it holds."""
        if isinstance(value, _PLAIN):
            self.found[name] = value
        elif isinstance(value, Tensor):
            self.found[name] = _TensorSeen(value, *_place(value))
        elif isinstance(value, np.ndarray | np.generic):
            self.found[name] = value.tobytes() if value.nbytes <= _LARGE else id(value)
        elif (drawn := _drawn(value)) is not None:
            self.found[f"{name} (it draws random numbers)"] = drawn
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            self._inside(name, value)

    def entries(self, name: str, values: Mapping[Any, Any]) -> None:
        """Look at the values of a mapping, and at how many there are."""
        self.found[f"the size of {name}"] = len(values)
        for number, (key, value) in enumerate(itertools.islice(values.items(), _MANY)):
            of = key if isinstance(key, str | int) else f"entry {number}"
            if not str(of).startswith("__"):
                self.at(f"{of} of {name}", value)

    def _inside(self, name: str, value: Any) -> None:
        if isinstance(value, (dict, *_SEQUENCES)):
            if _is_users(type(value)) or type(value).__module__ in _OF_PYTHON:
                as_dict = value if isinstance(value, dict) else dict(enumerate(value))
                self.entries(name, as_dict)
        elif isinstance(value, _FUNCTIONS):
            self._closure(name, value)
        elif isinstance(value, type):
            if _is_users(value):
                self.entries(name, vars(value))
        elif isinstance(value, _LOOKED_INTO) or _is_users(type(value)):
            self.at(type(value).__name__, type(value))
            self.entries(name, getattr(value, "__dict__", {}))

    def _closure(self, name: str, function: Any) -> None:
        self.at(name, getattr(function, "__self__", None))
        for cell in getattr(function, "__closure__", None) or ():
            try:
                self.at(f"a variable around {name}", cell.cell_contents)
            except ValueError:  # it is not assigned yet
                continue


class _TensorSeen(NamedTuple):
    """Which tensor it is and where; on the CPU also how often it was written to."""

    tensor: Tensor
    address: int
    version: int


def _place(tensor: Tensor) -> tuple[int, int]:
    address = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return address, tensor._version if tensor.device.type == "cpu" else 0  # noqa: SLF001


def _drawn(value: Any) -> Any:
    """Return the state of a generator of random numbers on the host, None for anything else."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return bytes(value.get_state().numpy())
    return None


def _is_users(kind: type) -> bool:
    """Whether a class is the user's own. A library's objects may do anything when looked into."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in _LIBRARIES:
        return module == "__main__"
    return not any(folder in file for folder in _INSTALLED)


def _defining(
    model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss
) -> Iterator[types.ModuleType]:
    """Return the user's modules that define the parts' classes, the optimizer's and the loss."""
    kinds = {type(part) for part in (*model.modules(), optimizer)}
    names = {kind.__module__ for kind in kinds if _is_users(kind)}
    names |= {compute_loss.__module__} if isinstance(compute_loss, types.FunctionType) else set()
    return (sys.modules[name] for name in sorted(names) if name in sys.modules)


def _generators() -> dict[str, Any]:
    return {
        "random (it draws random numbers)": random.getstate(),
        "numpy.random (it draws random numbers)": pickle.dumps(
            np.random.get_state()  # noqa: NPY002  the generator that users draw from
        ),
        "torch's generator on the CPU (it draws random numbers)": bytes(
            torch.get_rng_state().numpy()
        ),
    }


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, _TensorSeen) and isinstance(new, _TensorSeen):
        return old.tensor is new.tensor and old[1:] == new[1:]
    return (old,) == (new,)  # in a tuple, what is the same object is equal: NaN, too


def _shown(old: Any, new: Any) -> str:
    if isinstance(old, int | float | str) and isinstance(new, int | float | str):
        return f" from {old!r:.40} to {new!r:.40}"
    return ""
