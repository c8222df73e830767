"""Whether samples see each other in the loss, so that how they are batched changes the training.

In-batch negatives and means over tokens do that; a mean over samples does not, in whatever parts
it is accumulated. Told by the gradients of a batch and its halves: losses may be alike where all
tokens are equally hard, as in a model that has learnt nothing. In evaluation, where dropout and
batch norm leave each sample by itself.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trials.applying.apply import having
from autotune.trials.applying.step import Step
from autotune.trials.seeding import seed_all

_DIFFERENT = {"fp32": 0.02}  # relative; halves of as many tokens differ by rounding only
_DIFFERENT_WHEN_ROUNDED = 0.05
_RANDOM = 1e-3  # relative, between two seeds
_MOST_NUMBERS = 50_000_000  # of a gradient


def gradients_apart(step: Step, batch: Any) -> float | None:
    """Return how far the gradient of a batch is from the mean over its halves, None: not at all.

    Args:
        step: eager, on one rank.
        batch: on the step's device, of as many samples as its plan says.

    Returns:
        The norm of the difference over that of the gradient.

    Raises:
        ValueError: where it cannot be told, as the loss is random or the batch has no halves.
    """
    size = int(step.plan["batch_size"])
    halves = [_part(batch, size, each) for each in _halves(size)]
    enough = _DIFFERENT.get(str(step.plan.get("precision", "fp32")), _DIFFERENT_WHEN_ROUNDED)
    # cuDNN's convolutions round to tf32 where nobody asked for it, and not for all batches.
    with _in_evaluation(step.model), having(torch.backends.cudnn, "enabled", value=False):
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
    """Return those nearest to the loss; what samples do to each other there shows in them."""
    last_first = [p for p in model.parameters() if p.requires_grad][::-1]
    totals = itertools.accumulate(p.numel() for p in last_first)
    near = [p for p, total in zip(last_first, totals, strict=True) if total <= _MOST_NUMBERS]
    return near or last_first[:1]


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    difference = [one - other for one, other in zip(ours, theirs, strict=True)]
    length = _norm(ours)
    return _norm(difference) / length if length else 0.0


def _norm(gradient: list[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(part) for part in gradient]).norm())


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
    if size < 2:
        raise ValueError("a single sample has no halves")
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
