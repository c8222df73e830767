"""Moves numbers as far as a format rounds: the perturbation that eager fp32 is judged by."""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

Change = Callable[[str, Tensor], Tensor]
"""Takes the name of a weight and its values, and returns other values."""


def unchanged(name: str, weight: Tensor) -> Tensor:
    """Return the weight as it is."""
    return weight


def scattered(by: float, key: object) -> Change:
    """Return a change that multiplies each element of a weight by 1 + `by` or by 1 - `by`.

    The signs are random, and the same ones for the same key and name.
    """

    def change(name: str, weight: Tensor) -> Tensor:
        if not weight.is_floating_point():
            return weight
        return _factors(weight, by, _generator(weight.device, f"{key} {name}")).mul_(weight)

    return change


def _generator(device: torch.device, key: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(zlib.crc32(key.encode()))


def _factors(tensor: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """Return 1 + `by` or 1 - `by` for each element, in steps that its format has."""
    least = max(by, torch.finfo(tensor.dtype).eps)
    # In place: the scores of a large vocabulary leave no room for several copies.
    signs = torch.empty_like(tensor).bernoulli_(0.5, generator=generator)
    return signs.mul_(2 * least).add_(1 - least)


@contextlib.contextmanager
def rounded_layers(
    model: nn.Module, by: float, device: torch.device, key: object
) -> Iterator[None]:
    """Move what each layer gives, and the gradient that comes back to it, by a part of itself.

    Some gradients are sums of large terms that cancel. Only rounding on the way leaves something.
    """
    generator = _generator(device, f"layers {key}")

    def moved(layer: nn.Module, given: Any, output: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: _moved(tensor, by, generator), output)

    hooks = [layer.register_forward_hook(moved) for layer in filter(_is_layer, model.modules())]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_layer(module: nn.Module) -> bool:
    has_parts = next(module.children(), None) is not None
    return not has_parts and next(module.parameters(), None) is not None


def _moved(tensor: Tensor, by: float, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    both: Tensor = _BothWays.apply(tensor, by, generator)  # type: ignore[no-untyped-call]  # torch's
    return both


class _BothWays(torch.autograd.Function):
    """Moves a tensor in the forward pass and its gradient in the backward pass; keeps neither."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, by: float, generator: torch.Generator) -> Tensor:
        ctx.by, ctx.generator = by, generator
        return _factors(tensor, by, generator).mul_(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _factors(gradient, ctx.by, ctx.generator).mul_(gradient), None, None
