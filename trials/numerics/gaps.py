"""How far a training step is from the same step of another training, in plain numbers."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autotune.trials.process_group import Ranks


@dataclass(frozen=True, slots=True)
class Gap:
    """How far a tensor is from the reference's, as L2 norms.

    Attributes:
        difference: of the two.
        size: of the tensor.
        expected: of the reference's.
    """

    difference: float
    size: float
    expected: float

    @property
    def relative(self) -> float:
        """The norm of the difference, divided by the norm of the reference."""
        return _part(self.difference, self.expected)

    @property
    def in_size(self) -> float:
        """The relative excess of the larger of the two norms over the smaller one."""
        small, large = sorted((self.size, self.expected))
        return _part(large - small, small)


def _part(difference: float, whole: float) -> float:
    if not math.isfinite(difference) or (difference and not whole):
        return math.inf
    return difference / whole if whole else 0.0


def together(gaps: Iterable[Gap]) -> Gap:
    """Return the gap of several tensors as if they were one."""
    rows = [(gap.difference, gap.size, gap.expected) for gap in gaps]
    return Gap(*(math.hypot(*column) for column in zip(*rows, strict=True))) if rows else _NONE


_NONE = Gap(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGaps:
    """How far one step is from the reference's from the same weights, the worst rank of each.

    Attributes:
        loss, expected_loss: of the step and of the reference's.
        gradients: by parameter, as the optimizer reads them.
        weights: of what the step changed each parameter by.
        buffers: of what the step changed each buffer by. What the reference leaves alone is set
            beside the buffer itself.
    """

    loss: float
    expected_loss: float
    gradients: Mapping[str, Gap]
    weights: Mapping[str, Gap]
    buffers: Mapping[str, Gap]


def norms(seen: Tensor, expected: Tensor, beside: Tensor | None = None) -> Tensor:
    """Return the three norms of a `Gap` as one tensor; `beside` is what differences are part of.

    They are not waited for.
    """
    seen, expected = _float(seen), _float(expected)
    of = (seen - expected, seen, expected if beside is None else _float(beside))
    return torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in of])


def beyond_rounding(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the norms of two changes of a weight less what rounding the weight makes of them."""
    step = torch.finfo(weight.dtype).eps * torch.linalg.vector_norm(weight, dtype=torch.float64)
    return torch.stack([(rows[0] - step).clamp(min=0.0), rows[1], rows[2]])


def _float(tensor: Tensor) -> Tensor:
    """Return whole numbers, truth values and complex ones as something with a norm."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor if tensor.dtype == torch.float32 else tensor.double()


def moved(first: Tensor, last: Tensor) -> Tensor:
    """Return by what a tensor has changed."""
    return _float(last) - _float(first)


def worst_gaps(named: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Gap]:
    """Return the gaps from their norms, each the worst of all ranks; what is no number is inf."""
    found = dict(named)
    if not found:
        return {}
    rows = torch.stack(list(found.values())).nan_to_num(math.inf, math.inf, math.inf).flatten()
    values = iter(ranks.worst(*rows.tolist()))
    triples = zip(values, values, values, strict=True)
    return {name: Gap(*triple) for name, triple in zip(found, triples, strict=True)}
