"""The shapes of the tensors in a batch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def shapes_in(batch: Any) -> list[torch.Size]:
    """Return the shapes of the tensors in the batch: in dicts, lists and graphs."""
    if isinstance(batch, torch.Tensor):
        return [batch.shape]
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    else:  # such as a batch of torch_geometric
        parts = batch.to_dict().values() if callable(getattr(batch, "to_dict", None)) else ()
    return [shape for part in parts for shape in shapes_in(part)]


def num_elements(batch: Any) -> int:
    """Return how many elements the tensors in the batch hold together."""
    return sum(shape.numel() for shape in shapes_in(batch))
