"""Whether a tensor was written to between two moments."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorVersion:
    """What tells whether a tensor was written to or replaced.

    Attributes:
        tensor: itself; another tensor in its place counts as a write.
        num_writes: as torch counts them, which it does not for the statistics of batch norm
            outside of compiled code.
        total: the sum of its values as text, in which NaN equals NaN; empty where torch cannot
            add them.
    """

    tensor: Tensor
    num_writes: int
    total: str

    def is_same(self, other: "TensorVersion") -> bool:
        """Whether nothing was written between this version and the other."""
        same_values = (self.num_writes, self.total) == (other.num_writes, other.total)
        return self.tensor is other.tensor and same_values


def version_of(tensor: Tensor) -> TensorVersion:
    """Return the version of a tensor; the host waits for the device."""
    return TensorVersion(tensor, tensor._version, _total(tensor))  # noqa: SLF001  counts writes


def _total(tensor: Tensor) -> str:
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    try:
        return repr(tensor.detach().sum(dtype=dtype).item())
    except RuntimeError:  # of a dtype that has no sum
        return ""
