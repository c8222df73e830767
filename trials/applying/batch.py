"""Moves batches, whatever they are made of."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def moved(batch: Any, device: torch.device, move: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch on the device: tensors in tuples, lists, dicts, or what has `to`.

    Args:
        batch: anything; what holds no tensors stays as it is.
        device: for what has a `to` of its own.
        move: for tensors.
    """
    if isinstance(batch, Tensor):
        return move(batch)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict):
        changed = copy.copy(batch)  # of its own class, which may take other arguments
        changed.update((key, moved(value, device, move)) for key, value in batch.items())
        return changed
    if isinstance(batch, list | tuple):
        entries = (moved(entry, device, move) for entry in batch)
        return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)
    return batch
