"""The family `memory`: activation checkpointing, and how torch asks for the memory of a GPU.

Checkpointing computes again what the backward pass needs.

A block that is run again must give the same result and leave nothing else behind. Statistics that
norms keep would be updated twice in each step, so they are left as they are while an eager block
is recomputed. (Compiled, the update is in the graph of the forward pass alone, unless that graph
breaks.) What a second pass does to other state cannot be known in advance; `recomputation` checks
it in the first backward pass.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import check_found, replace_module
from autotune.trials.applying.caches import leave_out_caches
from autotune.trials.applying.settings import Setting

# The operators whose results selective checkpointing keeps: those that cost arithmetic. The rest,
# pointwise and normalisation, is cheaper to compute again than to hold (as in torchtitan's
# operator policy).
_KEPT = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    if hasattr(torch.ops.aten, name)
)
_EVERY = {"full": 1, "selective": 1, "every-2": 2, "every-4": 4}
NUM_BATCHES = "num_batches_tracked"
"""The buffer in which norms count batches."""


def process_settings(plan: Plan) -> list[Setting]:
    """Return the setting of torch's allocator, where the plan names another than its own."""
    return [_segments_that_grow()] if plan.get("allocator", "default") == "expandable" else []


@contextlib.contextmanager
def _segments_that_grow() -> Iterator[None]:
    """Let segments of the GPU's memory grow, beside the user's own settings of the allocator.

    What was allocated before stays where it is, so it is set before the model is built.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    own = next((os.environ[name] for name in names if name in os.environ), "")
    others = re.sub(r"(^|,)\s*expandable_segments:\w+", "", own).strip(",")
    configure_allocator(",".join(filter(None, (others, "expandable_segments:True"))))
    try:
        yield
    finally:
        configure_allocator(own or "expandable_segments:False")


def configure_allocator(settings: str) -> None:
    """Set what PYTORCH_ALLOC_CONF sets when a process starts; see torch's notes on CUDA."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001  torch 2.10
    (setter or torch.cuda.memory._set_allocator_settings)(settings)  # noqa: SLF001  nothing public


def is_checkpointed(plan: Plan) -> bool:
    """Whether the plan recomputes activations."""
    return plan.get("activation_checkpointing", "none") != "none"


def checkpoint_blocks(model: nn.Module, blocks: list[nn.Module], plan: Plan) -> list[nn.Module]:
    """Recompute the activations of blocks in the backward pass: of all, or each 2nd or 4th block.

    Returns:
        The blocks, wrapped or as they were.
    """
    if not is_checkpointed(plan):
        return blocks
    mode = str(plan["activation_checkpointing"])
    check_found(blocks, mode)
    leave_out_caches(model)
    return [
        block if i % _EVERY[mode] else _checkpoint_in_place(model, block, plan, mode)
        for i, block in enumerate(blocks)
    ]


def keeps_statistics(module: nn.Module) -> bool:
    """Whether the module is a norm of torch's with running statistics."""
    return isinstance(module, _NormBase) and module.track_running_stats


def _checkpoint_in_place(model: nn.Module, block: nn.Module, plan: Plan, mode: str) -> nn.Module:
    wrapped = _checkpointed(block, mode, compiled=is_compiled(plan))
    replace_module(model, block, wrapped)
    return wrapped


def _checkpointed(block: nn.Module, mode: str, *, compiled: bool) -> nn.Module:
    contexts = _selective_contexts if mode == "selective" else noop_context_fn
    if not compiled and any(map(keeps_statistics, block.modules())):
        contexts = partial(_contexts_keeping_statistics, block, contexts)
    elif mode != "selective":
        return checkpoint_wrapper(block)  # the compiler takes no context that does nothing
    return checkpoint_wrapper(block, context_fn=contexts)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_keep_arithmetic)


def _keep_arithmetic(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts_keeping_statistics(block: nn.Module, contexts: Any) -> Any:
    """Return the contexts of the forward pass and of its recomputation.

    In the latter the norms of the block leave their statistics as they are.
    """
    forward, again = contexts()
    return forward, _recomputing(block, again)


@contextlib.contextmanager
def _recomputing(block: nn.Module, policy: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for norm in filter(keeps_statistics, block.modules()):
            stack.enter_context(_statistics_kept(norm))
        stack.enter_context(policy)
        yield


@contextlib.contextmanager
def _statistics_kept(norm: Any) -> Iterator[None]:
    """Let the norm compute as in training, and leave its running statistics as they are."""
    momentum, count = norm.momentum, norm._buffers[NUM_BATCHES]  # noqa: SLF001  see below
    # Without statistics to write to, a norm saves other tensors for the backward pass.
    norm.momentum = 0.0
    norm._buffers[NUM_BATCHES] = None  # noqa: SLF001  a buffer that is None is not counted up
    try:
        yield
    finally:
        norm.momentum, norm._buffers[NUM_BATCHES] = momentum, count  # noqa: SLF001
