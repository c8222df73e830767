"""The steps of a numerics check: recorded in eager fp32, then taken again by others.

The first steps make the optimizer's state, and what a plan records or compiles. The compared ones
begin at weights that are moved by a part of themselves: whatever reads older weights gives other
gradients there, however small the learning rate is. Whoever takes a step again begins it at the
same weights and buffers. The state of its optimizer comes from its own gradients of the steps
before, which were taken at the reference's weights, too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.trials.numerics.gaps import StepGaps, beyond_rounding, moved, norms, worst_gaps
from autotune.trials.numerics.rounding import Change, rounded_layers, scattered, unchanged
from autotune.trials.numerics.state import (
    CannotCompareError,
    Kept,
    Snapshot,
    buffers_of,
    parameters_of,
    put_back,
    snapshot,
    whole,
)
from autotune.trials.numerics.training import Training
from autotune.trials.process_group import Ranks

# How far weights are moved before a compared step, as a part of themselves: enough to change
# gradients by several percent, and little beside what training moves them by.
_MOVED_BY = 1 / 16
# What a group says of how the optimizer computes, not of what.
_IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The reference's steps.

    Attributes:
        num_before: steps before the compared ones.
        after: weights and buffers as they were built, then after each step.
        losses: of each step.
        gradients: of each compared step, by its number.
        settings: of the optimizer's groups.
        is_random: whether a step draws random numbers, on any rank.
    """

    num_before: int
    after: Sequence[Snapshot]
    losses: Sequence[float]
    gradients: Mapping[int, Mapping[str, Kept]]
    settings: Sequence[Mapping[str, Any]]
    is_random: bool


def record(training: Training, num_before: int, store: torch.device, ranks: Ranks) -> Recorded:
    """Take the reference's steps and keep what they did on the device `store`.

    Raises:
        CannotCompareError: where a loss or a gradient is not finite, or no gradient can be seen.
    """
    step = training.step
    states, losses = [snapshot(step.model, store, None)], list[float]()
    gradients: dict[int, Mapping[str, Kept]] = {}
    for number in range(training.num_steps):
        change = _before(number, num_before)
        begin = partial(put_back, step.model, states[number], change, step.device)
        losses.append(training.run(number, begin))
        _check_finite(training, losses[-1], ranks)
        states.append(snapshot(step.model, store, states[-1]))
        if number >= num_before:
            gradients[number] = {n: g.copied(store) for n, g in training.gradients.kept()}
    return Recorded(
        num_before=num_before,
        after=states,
        losses=losses,
        gradients=gradients,
        settings=settings_of(step.optimizer),
        is_random=ranks.worst(float(training.has_drawn)) != [0.0],
    )


def _before(number: int, num_before: int) -> Change:
    """Return how the reference's weights are changed before a step."""
    return unchanged if number < num_before else scattered(_MOVED_BY, number)


def _check_finite(training: Training, loss: float, ranks: Ranks) -> None:
    seen, complete = training.gradients.is_seen, training.gradients.is_complete()
    nothing_seen, not_finite = ranks.worst(not seen, not (complete and math.isfinite(loss)))
    if nothing_seen:
        raise CannotCompareError("eager fp32 leaves its optimizer no gradients to compare")
    if not_finite:
        raise CannotCompareError("eager fp32 itself does not stay finite in its first steps")


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return what the optimizer's groups say but for its implementation; tensors as numbers."""
    return [
        {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name not in _IMPLEMENTATION
        }
        for group in optimizer.param_groups
    ]


def retaken(
    training: Training, recorded: Recorded, ranks: Ranks, *, rounded_by: float = 0.0
) -> list[StepGaps]:
    """Take the recorded steps again and return how far the compared ones are from them.

    Args:
        training: of any plan for the same workload, batch and ranks.
        recorded: the reference's steps.
        ranks: this one and its peers.
        rounded_by: the part of themselves that weights and what layers give are moved by, with
            random signs.
    """
    gaps, model, device = list[StepGaps](), training.step.model, training.step.device
    for number in range(len(recorded.losses)):
        start = _Start(recorded, number, rounded_by, device)
        with rounded_layers(model, rounded_by, device, number) if rounded_by else nullcontext():
            loss = training.run(number, partial(start.put_into, model))
        if number >= recorded.num_before:
            gaps.append(_Taken(training, start, recorded, number).gaps(loss, ranks))
    return gaps


class _Start:
    """The weights and buffers that a step begins with."""

    def __init__(
        self, recorded: Recorded, number: int, rounded_by: float, device: torch.device
    ) -> None:
        self.kept, self._device = recorded.after[number], device
        self._reference = _before(number, recorded.num_before)
        rounding = scattered(rounded_by, f"rounded {number}")
        self._rounded = rounding if rounded_by else unchanged

    def put_into(self, model: nn.Module) -> None:
        """Write them into a model."""
        put_back(model, self.kept, lambda *weight: self._both(*weight)[0], self._device)

    def weight(self, name: str) -> tuple[Tensor, Tensor]:
        """Return a weight as the step began with it, and as the reference's did."""
        return self._both(name, self.kept.parameters[name].whole(self._device))

    def _both(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        reference = self._reference(name, weight)
        return self._rounded(name, reference), reference


class _Taken:
    """A step that was just taken again, beside the reference's."""

    def __init__(self, training: Training, start: _Start, recorded: Recorded, number: int) -> None:
        self._training, self._start = training, start
        self._model, self._device = training.step.model, training.step.device
        self._expected_loss = recorded.losses[number]
        self._gradients = recorded.gradients[number]
        self._after = recorded.after[number + 1]

    def gaps(self, loss: float, ranks: Ranks) -> StepGaps:
        """Return how far all of it is from the reference; a collective."""
        with torch.no_grad():
            return StepGaps(
                loss=loss,
                expected_loss=self._expected_loss,
                gradients=worst_gaps(self._of_gradients(), ranks),
                weights=worst_gaps(self._of_weights(), ranks),
                buffers=worst_gaps(self._of_buffers(), ranks),
            )

    def _of_gradients(self) -> Iterator[tuple[str, Tensor]]:
        own = dict(self._training.gradients.kept())
        for name, kept in self._gradients.items():
            expected = kept.whole(self._device)
            seen = own[name].whole(self._device) if name in own else torch.zeros_like(expected)
            yield name, norms(seen, expected)

    def _of_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in parameters_of(self._model).items():
            own, reference = self._start.weight(name)
            after = self._after.parameters[name].whole(self._device)
            rows = norms(moved(own, whole(parameter)), moved(reference, after))
            yield name, beyond_rounding(rows, reference) if after.is_floating_point() else rows

    def _of_buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in buffers_of(self._model).items():
            first, last = self._start.kept.buffers.get(name), self._after.buffers.get(name)
            if first is None or last is None or not buffer.numel():
                continue
            before, after = first.whole(self._device), last.whole(self._device)
            if before.shape == after.shape == buffer.shape:
                change = moved(before, after)
                beside = change if bool(change.any()) else before
                yield name, norms(moved(before, whole(buffer)), change, beside)
