"""Matrix products whose sides tensor cores cannot read in their units."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

TENSOR_CORE_MULTIPLE = 8
"""Elements of 2 bytes in the 16 that tensor cores read at once (NVIDIA's performance guides)."""

_aten = torch.ops.aten
_PADDED = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}  # by torch's compiler


class UnevenProducts(TorchDispatchMode):
    """Counts the work of the products with an uneven side, which the compiler may pad.

    Attributes:
        flops: of these products.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Compute, then look."""
        out = func(*args, **(kwargs or {}))
        if func in _PADDED and _is_uneven(args[-2:]):
            self.flops += flop_registry[func.overloadpacket](*args, out_val=out)
        return out


def _is_uneven(matrices: Sequence[torch.Tensor]) -> bool:
    return any(side % TENSOR_CORE_MULTIPLE for m in matrices for side in m.shape[-2:])
