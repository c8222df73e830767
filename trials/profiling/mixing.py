"""Whether the loss of a sample depends on the others in its batch.

Then another batch size trains another loss. In-batch negatives and means over tokens are such
losses; a mean over samples is not, in whatever parts it is accumulated. The gradient of a batch is
compared with the mean over its halves. Losses would not show it where all tokens are equally hard,
as in a model that has learnt nothing. The model is in evaluation, where dropout and batch norm do
not mix samples.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trials.applying.settings import attribute_set
from autotune.trials.applying.step import Step
from autotune.trials.seeding import seed_all

# Relative difference of gradients from which the loss depends on the batch, by precision; up to it
# rounding is enough to explain it.
_TOLERANCE, _TOLERANCE_WHEN_ROUNDED = {"fp32": 0.02}, 0.05
_RANDOM = 1e-3  # relative difference between two seeds from which a loss is random
_MAX_ELEMENTS = 50_000_000  # of the parameters whose gradients are compared


def gradients_apart(step: Step, batch: Any) -> float | None:
    """Return how far the gradient of a batch is from the mean over its halves.

    Args:
        step: eager, on one rank.
        batch: on the step's device, of as many samples as its plan says.

    Returns:
        The norm of the difference over that of the gradient; None where rounding explains it.

    Raises:
        ValueError: when the loss is random, or the batch cannot be divided.
    """
    size = int(step.plan["batch_size"])
    halves = [_part(batch, size, each) for each in _halves(size)]
    enough = _TOLERANCE.get(str(step.plan.get("precision", "fp32")), _TOLERANCE_WHEN_ROUNDED)
    # By default cuDNN's convolutions round to tf32, for some batch sizes and not for others.
    with _in_evaluation(step.model), attribute_set(torch.backends.cudnn, "enabled", value=False):
        whole, first, second = (_gradient(step, part) for part in (batch, *halves))
        share = (size // 2) / size
        pairs = zip(first, second, strict=True)
        apart = _apart(whole, [share * one + (1.0 - share) * other for one, other in pairs])
        if apart <= enough:
            return None
        if _apart(first, _gradient(step, halves[0], seed=1)) > _RANDOM:
            raise ValueError("the loss is random")
    return apart


def _gradient(step: Step, batch: Any, seed: int = 0) -> list[Tensor]:
    seed_all(seed)
    watched = _last_parameters(step.model)
    found = torch.autograd.grad(step.loss(batch), watched, materialize_grads=True)
    return [gradient.to_dense() for gradient in found]


def _last_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters nearest to the loss, as many as have `_MAX_ELEMENTS` elements."""
    last_first = [p for p in model.parameters() if p.requires_grad][::-1]
    totals = itertools.accumulate(p.numel() for p in last_first)
    near = [p for p, total in zip(last_first, totals, strict=True) if total <= _MAX_ELEMENTS]
    return near or last_first[:1]


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    difference = [one - other for one, other in zip(ours, theirs, strict=True)]
    length = _norm(ours)
    return _norm(difference) / length if length else 0.0


def _norm(gradient: list[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(part) for part in gradient]).norm())


@contextlib.contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation without calling `train`, and restore them at the end."""
    before = [(part, part.training) for part in model.modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training


def _halves(size: int) -> list[slice]:
    if size < 2:
        raise ValueError("a single sample has no halves")
    return [slice(0, size // 2), slice(size // 2, size)]


def _part(value: Any, size: int, which: slice) -> Any:
    """Return the part of a batch that belongs to some of its samples.

    Raises:
        ValueError: for entries that do not hold one element per sample.
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
