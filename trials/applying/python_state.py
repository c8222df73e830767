"""The state in Python that a training step changes, which a recorded step would leave unchanged.

A replay runs no Python: a counter that the model keeps as a number would stand still, a random
number that the host draws would stay the same, and a tensor that replaces another would never be
read. So before a step is recorded, one real step is checked to change no such state. State that
changes less often than in each step is not seen.
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

from autotune.trials.failure import InvalidPlanError
from autotune.trials.workload import ComputeLoss

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (tuple, list, set, frozenset, collections.deque)
_PYTHON_MODULES = ("builtins", "collections")
# Classes of libraries whose objects are followed, as those of the user's own classes are.
_FOLLOWED = (nn.Module, Optimizer, types.SimpleNamespace)
_FUNCTIONS = (types.FunctionType, types.MethodType)
# The most entries of a container that are followed, and the largest array that is compared by its
# values: the user's file may hold a whole dataset.
_MAX_ENTRIES, _MAX_ARRAY_BYTES = 10_000, 2**20
# Packages, and parts of paths, whose classes are not the user's own.
_LIBRARIES = frozenset({"torch", "numpy", "autotune"})
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))

State = Mapping[str, Any]


def python_state(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> State:
    """Return the state in Python that a step could change, by names that a user understands.

    It holds the values and tensors in the attributes of the model's modules, in the optimizer and
    in the files that define them and the loss, also inside of containers, objects, classes and
    closures; and the states of random number generators on the host. A tensor on a device counts
    by its identity, not by its values: those a recorded step changes, too.
    """
    walk = _Walk()
    # Inner modules first, so that what they hold is named after them.
    for name, part in reversed([*model.named_modules()]):
        walk.visit(f"{type(part).__name__} {name}".strip(), part)
    walk.visit("the optimizer", optimizer)
    walk.visit("compute_loss", compute_loss)
    for module in _defining(model, optimizer, compute_loss):
        walk.visit_entries(module.__name__, vars(module))
    return {**walk.found, **_generators()}


def check_unchanged(before: State, after: State) -> None:
    """Check that the step between both states changed nothing.

    Raises:
        InvalidPlanError: naming the first value that changed.
    """
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if not _is_same(old, new):
            raise InvalidPlanError(
                f"the step changes {name}{_shown(old, new)}, and a recorded step runs no Python; "
                "keep it in a tensor on the device that is updated in place, or use cuda_graph=off"
            )


class _Walk:
    """Follows references from the user's objects; `found` holds the values at their ends."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()

    def visit(self, name: str, value: Any) -> None:
        """Note a value, or follow the references that it holds."""
        if isinstance(value, _SIMPLE):
            self.found[name] = value
        elif isinstance(value, Tensor):
            self.found[name] = _TensorState(value, *_address_and_version(value))
        elif isinstance(value, np.ndarray | np.generic):
            self.found[name] = value.tobytes() if value.nbytes <= _MAX_ARRAY_BYTES else id(value)
        elif (generator := _generator_state(value)) is not None:
            self.found[f"{name} (it draws random numbers)"] = generator
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            self._follow(name, value)

    def visit_entries(self, name: str, values: Mapping[Any, Any]) -> None:
        """Visit the values of a mapping, and note how many there are."""
        self.found[f"the size of {name}"] = len(values)
        for number, (key, value) in enumerate(itertools.islice(values.items(), _MAX_ENTRIES)):
            of = key if isinstance(key, str | int) else f"entry {number}"
            if not str(of).startswith("__"):
                self.visit(f"{of} of {name}", value)

    def _follow(self, name: str, value: Any) -> None:
        if isinstance(value, (dict, *_SEQUENCES)):
            if _is_users(type(value)) or type(value).__module__ in _PYTHON_MODULES:
                as_dict = value if isinstance(value, dict) else dict(enumerate(value))
                self.visit_entries(name, as_dict)
        elif isinstance(value, _FUNCTIONS):
            self._closure(name, value)
        elif isinstance(value, type):
            if _is_users(value):
                self.visit_entries(name, vars(value))
        elif isinstance(value, _FOLLOWED) or _is_users(type(value)):
            self.visit(type(value).__name__, type(value))
            self.visit_entries(name, getattr(value, "__dict__", {}))

    def _closure(self, name: str, function: Any) -> None:
        self.visit(name, getattr(function, "__self__", None))
        for cell in getattr(function, "__closure__", None) or ():
            try:
                self.visit(f"a variable around {name}", cell.cell_contents)
            except ValueError:  # it is not assigned yet
                continue


class _TensorState(NamedTuple):
    """A tensor and its address; on the CPU also how often it was written to, else 0."""

    tensor: Tensor
    address: int
    num_writes: int


def _address_and_version(tensor: Tensor) -> tuple[int, int]:
    address = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return address, tensor._version if tensor.device.type == "cpu" else 0  # noqa: SLF001


def _generator_state(value: Any) -> Any:
    """Return the state of a random number generator on the host, None for anything else."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return bytes(value.get_state().numpy())
    return None


def _is_users(kind: type) -> bool:
    """Whether a class is the user's own. Reading attributes of a library's may run its code."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in _LIBRARIES:
        return module == "__main__"
    return not any(folder in file for folder in _INSTALLED)


def _defining(
    model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss
) -> Iterator[types.ModuleType]:
    """Return the user's files that define the classes of model and optimizer, and the loss."""
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
    if isinstance(old, _TensorState) and isinstance(new, _TensorState):
        return old.tensor is new.tensor and old[1:] == new[1:]
    return (old,) == (new,)  # in a tuple, what is the same object is equal: NaN, too


def _shown(old: Any, new: Any) -> str:
    if isinstance(old, int | float | str) and isinstance(new, int | float | str):
        return f" from {old!r:.40} to {new!r:.40}"
    return ""
