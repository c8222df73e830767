"""A root: an outermost module that the command trains, with the plan in its forward pass."""

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from autotune.search_space.plan import Plan
from autotune.trials.applying.layout import image_format, is_images


class Watcher(Protocol):
    """Is told when roots are called."""

    def forward_begins(self, root: "Root", args: Any, kwargs: Any) -> None:
        """Note that a root is called with gradients on."""

    def forward_without_gradients(self) -> None:
        """Note that a root is called with gradients off, as validation does."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's module inside of the wrappers of DDP, of one device, and the compiler."""
    while (inner := _wrapped(module)) is not None:
        module = inner
    return module


def _wrapped(module: nn.Module) -> nn.Module | None:
    if is_compiled_by_user(module):
        inner = getattr(module, "_orig_mod", None)
    else:
        on_one_device = isinstance(module, nn.DataParallel) and len(module.device_ids) <= 1
        is_wrapper = on_one_device or isinstance(module, DistributedDataParallel)
        inner = getattr(module, "module", None) if is_wrapper else None
    return inner if isinstance(inner, nn.Module) else None


def is_compiled_by_user(module: nn.Module) -> bool:
    """Whether it is what `torch.compile(module)` returns; to import that class takes seconds."""
    return type(module).__name__ == "OptimizedModule"


class Root:
    """The forward pass of a root: with gradients on as the plan has it, else the user's own.

    It stands in the module's place for `forward`, with the same signature.

    Attributes:
        module: the user's.
        outermost: the module as it is called, with its wrappers.
        eager: the user's forward pass.
        tuned: the forward pass under the plan.
        plan: what it was changed by.
        is_traced: whether the script's own compiler traces through it.
        own_autocast: the dtype of the user's own autocast in the first call, or None.
    """

    def __init__(
        self,
        module: nn.Module,
        outermost: nn.Module,
        eager: Callable[..., Any],
        tuned: Callable[..., Any],
        watcher: Watcher,
        *,
        plan: Plan,
    ) -> None:
        self.module, self.outermost = module, outermost
        self.eager, self.tuned = eager, tuned
        self.plan, self._watcher = plan, watcher
        self.is_traced = is_compiled_by_user(outermost)
        self._image_format = image_format(plan)
        self.device = next(module.parameters()).device
        kind = self.device.type
        is_on = torch.is_autocast_enabled(kind)
        self.own_autocast = torch.get_autocast_dtype(kind) if is_on else None
        self.__wrapped__ = eager

    def look_at_autocast(self) -> None:
        """Note the dtype of an autocast that the script enters inside of its forward pass."""
        leaves = (m for m in self.module.modules() if next(m.children(), None) is None)
        leaf = next(leaves, None)
        if leaf is None or self.own_autocast is not None:
            return

        def look(module: nn.Module, given: Any) -> None:
            handle.remove()
            if torch.is_autocast_enabled(self.device.type):
                self.own_autocast = torch.get_autocast_dtype(self.device.type)

        handle = leaf.register_forward_pre_hook(look)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass."""
        if not torch.is_grad_enabled():
            self._watcher.forward_without_gradients()
            return self.eager(*args, **kwargs)
        self._watcher.forward_begins(self, args, kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass under the plan."""
        if self._image_format is not torch.preserve_format:
            args, kwargs = tree_map_only(torch.Tensor, self._formatted, (args, kwargs))
        return self.tuned(*args, **kwargs)

    def _formatted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=self._image_format) if is_images(tensor) else tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """Let a copy of the module have the user's forward pass."""
        forward: Callable[..., Any] = copy.deepcopy(self.module, memo).forward
        return forward

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a pickle of the module have the user's forward pass."""
        return getattr, (self.module, "forward")
