"""Weights and buffers of a model, kept aside by name and put back in place.

Names are those of the user's model: what checkpointing puts into them is taken out again. A tensor
that is cut into parts is kept as this rank's part, and is made whole one tensor at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from autotune.trials.numerics.rounding import Change

_OF_CHECKPOINTING = "_checkpoint_wrapped_module."


class CannotCompareError(Exception):
    """Two trainings cannot be compared, for a reason that says nothing against the plan."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor is cut into parts: what `DTensor.from_local` needs to know."""

    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of a tensor.

    Attributes:
        part: all of it, or this rank's part.
        layout: how it is cut; None for a whole one.
    """

    part: Tensor
    layout: _Layout | None = None

    def whole(self, device: torch.device) -> Tensor:
        """Return all of the tensor on the device; a collective where it is cut."""
        part = self.part.to(device)
        if self.layout is None:
            return part
        at = self.layout
        cut = DTensor.from_local(
            part, at.mesh, at.placements, run_check=False, shape=at.shape, stride=at.stride
        )
        return cut.full_tensor()

    def copied(self, store: torch.device) -> "Kept":
        """Return a copy on the device `store`."""
        return Kept(self.part.to(store, copy=True), self.layout)


def keep(tensor: Tensor, store: torch.device) -> Kept:
    """Return a copy of the tensor, or of this rank's part of it, on the device `store`."""
    seen = tensor.detach()
    return Kept(local(seen), layout_of(seen)).copied(store)


def local(tensor: Tensor) -> Tensor:
    """Return the tensor, or this rank's part where it is cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def layout_of(tensor: Tensor) -> _Layout | None:
    """Return how the tensor is cut into parts, None for a whole one."""
    if not isinstance(tensor, DTensor):
        return None
    return _Layout(tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; a collective where it is cut."""
    seen = tensor.detach()
    return seen.full_tensor() if isinstance(seen, DTensor) else seen


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters by the names that the user knows."""
    return {_users_name(name): parameter for name, parameter in model.named_parameters()}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's buffers by the names that the user knows."""
    return {_users_name(name): buffer for name, buffer in model.named_buffers()}


def _users_name(name: str) -> str:
    return name.replace(_OF_CHECKPOINTING, "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights and buffers that a model had at one moment."""

    parameters: Mapping[str, Kept]
    buffers: Mapping[str, Kept]


def snapshot(model: nn.Module, store: torch.device, before: Snapshot | None) -> Snapshot:
    """Return copies of the model's weights and buffers on the device `store`.

    What stands still, such as the weights below an adapter, is shared with the snapshot `before`.
    """
    known = before or Snapshot({}, {})
    return Snapshot(
        {n: _kept(p, store, known.parameters.get(n)) for n, p in parameters_of(model).items()},
        {n: _kept(b, store, known.buffers.get(n)) for n, b in buffers_of(model).items()},
    )


def _kept(tensor: Tensor, store: torch.device, before: Kept | None) -> Kept:
    if before is not None and not tensor.requires_grad:
        old, now = before.part.to(local(tensor).device), local(tensor)
        if old.shape == now.shape and torch.equal(old, now):
            return before
    return keep(tensor, store)


def put_back(model: nn.Module, kept: Snapshot, change: Change, device: torch.device) -> None:
    """Write kept weights, changed, and kept buffers into the tensors that the model has.

    In place, because recorded steps and compiled code go on reading from where they were.

    Raises:
        CannotCompareError: when the model has other parameters than the one they are from.
    """
    parameters, buffers = parameters_of(model), buffers_of(model)
    unknown = sorted(parameters.keys() ^ kept.parameters.keys())
    if unknown:
        raise CannotCompareError(
            f"the parameter {unknown[0]} is not in both of two models that build_model() made"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            _write(name, parameter, change(name, kept.parameters[name].whole(device)))
        for name in buffers.keys() & kept.buffers.keys():
            _write_if_other(name, buffers[name], kept.buffers[name].whole(device))


def _write(name: str, target: Tensor, values: Tensor) -> None:
    if target.shape != values.shape:
        raise CannotCompareError(
            f"{name} has the shape {tuple(target.shape)} in one of two models that build_model() "
            f"made and {tuple(values.shape)} in the other"
        )
    if isinstance(target, DTensor):
        values = distribute_tensor(values, target.device_mesh, target.placements)
    target.copy_(values)


def _write_if_other(name: str, target: Tensor, values: Tensor) -> None:
    """Leave a buffer alone that is right: where it is written to, it is sent to other ranks."""
    if target.shape != values.shape or not torch.equal(target, values):
        _write(name, target, values)
