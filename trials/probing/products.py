"""Matrix products with sides that are no multiple of what tensor cores read at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

TENSOR_CORE_MULTIPLE = 8
"""Elements of 2 bytes in the 16 that tensor cores read at once (NVIDIA's performance guides)."""

_MIN_SIDE = 64  # shorter sides cost little, even or not
_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}  # the operators of linear layers


def uneven_sides(weight: Tensor) -> set[int]:
    """Return the long sides of a weight that are no multiple of what tensor cores read."""
    if weight.dim() < 2:
        return set()
    return {side for side in weight.shape if side >= _MIN_SIDE and side % TENSOR_CORE_MULTIPLE}


class UnevenProducts(TorchDispatchMode):
    """Counts the work of products with an uneven side of a weight, which the compiler may pad.

    Sides of activations alone are left out: they follow from the batch.

    Attributes:
        flops: of these products.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.flops = 0.0
        self._uneven = {side for weight in model.parameters() for side in uneven_sides(weight)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, and count it."""
        out = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and not self._uneven.isdisjoint(_sides(*args[-2:])):
            self.flops += flop_registry[func.overloadpacket](*args, out_val=out)
        return out


def _sides(first: Tensor, second: Tensor) -> tuple[int, ...]:
    return (*first.shape, *second.shape)
