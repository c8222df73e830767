"""Whether a tensor was written to between two looks at it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Look:
    """What is compared.

    Attributes:
        tensor: itself; another one in its place is a change, too.
        num_writes: as torch counts them, which it does not for the statistics of batch norm
            outside of compiled code.
        total: the sum of its values in words, in which NaN is like NaN; empty where torch cannot
            add them.
    """

    tensor: Tensor
    num_writes: int
    total: str

    def is_like(self, other: "Look") -> bool:
        """Whether nothing was written between this look and the other."""
        same_values = (self.num_writes, self.total) == (other.num_writes, other.total)
        return self.tensor is other.tensor and same_values


def look_at(tensor: Tensor) -> Look:
    """Look at a tensor, for which the host waits."""
    return Look(tensor, tensor._version, _total(tensor))  # noqa: SLF001  counts writes


def _total(tensor: Tensor) -> str:
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    try:
        return repr(tensor.detach().sum(dtype=dtype).item())
    except RuntimeError:  # of a dtype that has no sum
        return ""
