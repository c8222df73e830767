"""Whether samples see each other in the loss, so that how they are batched changes the training.

In-batch negatives and means over tokens do that; a mean over samples does not, in whatever parts
it is accumulated. Told by a batch and its halves, in evaluation, where dropout and batch norm
leave each sample by itself.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trials.seeding import seed_all
from autotune.trials.step import Step

_DIFFERENT = 0.01  # relative; halves of as many tokens differ by rounding only
_RANDOM = 1e-4  # relative, between two seeds


def mixed_losses(step: Step, batch: Any) -> tuple[float, float] | None:
    """Return the loss of the batch and the mean over its halves where they differ, else None.

    None also where that cannot be told: the loss is random, or the batch has no halves.

    Args:
        step: eager, on one rank.
        batch: on the step's device, of as many samples as its plan says.
    """
    size = int(step.plan["batch_size"])
    with torch.no_grad(), _in_evaluation(step.model):
        try:
            parts = [_part(batch, size, each) for each in _halves(size)]
            whole, again = (_loss(step, batch, seed) for seed in range(2))
            mean = sum(_loss(step, part, 0) for part in parts) / len(parts)
        except Exception:  # noqa: BLE001  code for training alone, or batches of another shape
            return None
    is_random = abs(whole - again) > _RANDOM * abs(whole)
    return None if is_random or abs(whole - mean) <= _DIFFERENT * abs(whole) else (whole, mean)


def _loss(step: Step, batch: Any, seed: int) -> float:
    seed_all(seed)
    return float(step.loss(batch))


@contextlib.contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put all parts into evaluation, past a `train` of the user's own, and back as they were."""
    before = [(part, part.training) for part in model.modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training


def _halves(size: int) -> list[slice]:
    if size % 2:
        raise ValueError("an odd number of samples has no halves")
    return [slice(0, size // 2), slice(size // 2, size)]


def _part(value: Any, size: int, which: slice) -> Any:
    """Return what a batch holds of some of its samples.

    Raises:
        ValueError: for what cannot be told to belong to one sample each.
    """
    if isinstance(value, Tensor):
        if not value.dim() or len(value) != size:
            raise ValueError(f"a tensor of shape {tuple(value.shape)} has no {size} samples")
        return value[which]
    if isinstance(value, Mapping):
        return {key: _part(entry, size, which) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        try:
            return [_part(entry, size, which) for entry in value]
        except ValueError:
            if len(value) != size:
                raise
            return value[which]
    raise ValueError(f"a {type(value).__name__} cannot be taken apart")
