"""Sharding `fsdp_zero2`, `fsdp_zero3` and `hsdp`: each rank holds a part of each parameter.

With `parameter_offload` it holds its parts in the memory of the host, also a single rank.

FSDP follows torchtitan's order: each block is sharded by itself, then what is left by the root.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from autotune.search_space.knobs.ranks import offloads_parameters
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import parameter_of_two_parts
from autotune.trials.applying.construction import materialise
from autotune.trials.applying.precision import half_dtype
from autotune.trials.applying.shared_buffers import SharedBuffers
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import Ranks
from autotune.trials.workload import ComputeLoss


class FullySharded:
    """A model under `fully_shard`.

    FSDP casts parameters and inputs, and no buffers. What a block computes with a buffer of fp32,
    such as a table of angles, is fp32 again, and meets half precision under autocast only.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        assert isinstance(model, FSDPModule)
        self._fsdp: FSDPModule = model
        self._model: nn.Module = model
        self._buffers = SharedBuffers(model, ranks)
        self.casts = not any(buffer.is_floating_point() for buffer in model.buffers())

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """Return the loss of this rank's batch."""
        self._buffers.share()
        return compute_loss(self._model, batch)

    def sync_gradients(self, *, due: bool) -> None:
        """Average gradients in the next backward pass if it is due, else accumulate them."""
        self._fsdp.set_requires_gradient_sync(due)
        self._fsdp.set_is_last_backward(due)

    def check_after_backward(self) -> None:
        """Check nothing: a model of which other parts run in each step gets no plan with FSDP."""


def shard_fully(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    plan: Plan,
    ranks: Ranks,
    mesh: DeviceMesh,
    *,
    reshard: bool,
) -> FullySharded:
    """Shard each block, then the rest of the model, over the devices of `mesh`.

    Args:
        model: on the rank's device, on the CPU or on the meta device.
        blocks: in order.
        plan: names the precision, and what is kept in the memory of the host.
        ranks: this one and its peers.
        mesh: of the devices that share parameters.
        reshard: whether parameters are freed between the forward and the backward pass.

    Raises:
        InvalidPlanError: when a parameter has a hook or belongs to two parts.
    """
    _check_no_hooks(model)
    shared = parameter_of_two_parts(model, blocks)
    if shared is not None:
        raise InvalidPlanError(f"{shared}; use sharding=ddp or zero1")
    offload = _offload_policy(plan, mesh)
    for block in blocks:
        policy = _policy(plan, block.modules(), output_dtype=None)
        materialise(block, mesh.device_type)
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=reshard,
            mp_policy=policy,
            offload_policy=offload,
        )
    # The backward pass starts with the root's own parameters, so freeing them gains nothing.
    reshard_root = reshard and not blocks
    in_blocks = {module for block in blocks for module in block.modules()}
    rest = (module for module in model.modules() if module not in in_blocks)
    root = _policy(plan, rest, output_dtype=torch.float32)
    materialise(model, mesh.device_type)
    fully_shard(
        model,
        mesh=mesh,
        reshard_after_forward=reshard_root,
        mp_policy=root,
        offload_policy=offload,
    )
    return FullySharded(model, ranks)


def _check_no_hooks(model: nn.Module) -> None:
    """Check that no parameter has a hook of the user's: FSDP replaces parameters by their parts.

    Raises:
        InvalidPlanError: naming the parameter that has one.
    """
    for name, parameter in model.named_parameters():
        later = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or later:  # noqa: SLF001  nothing public tells
            raise InvalidPlanError(
                f"the parameter {name} has a hook, which would not be called for the parts that "
                "FSDP makes of it; use sharding=ddp or zero1"
            )


def _offload_policy(plan: Plan, mesh: DeviceMesh) -> OffloadPolicy:
    if not offloads_parameters(plan):
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")


def _policy(
    plan: Plan, modules: Iterable[nn.Module], output_dtype: torch.dtype | None
) -> MixedPrecisionPolicy:
    """Return FSDP's policy for the plan's precision: half the traffic, gradients summed in fp32.

    A norm that keeps statistics takes them in one kernel with its parameters, and wants both in
    fp32. FSDP casts all parameters of a part or none; where such a norm is among them, autocast
    casts instead.
    """
    half = half_dtype(plan)
    if half is None or any(map(_mixes_parameters_with_buffers, modules)):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, output_dtype=output_dtype
    )


def _mixes_parameters_with_buffers(module: nn.Module) -> bool:
    """Whether the module has both parameters and floating-point buffers of its own."""
    buffers = module.buffers(recurse=False)
    return any(True for _ in module.parameters(recurse=False)) and any(
        buffer.is_floating_point() for buffer in buffers
    )
