"""Activation checkpointing: wraps blocks so that their activations are recomputed.

A block that is run again must give the same and leave nothing else behind. Statistics that norms
keep would be updated twice for each step, so they stand still while an eager block is recomputed;
of other state in buffers nobody can tell what a second pass does to it, and the plan is refused.
(Compiled, the update is in the graph of the forward pass alone.)
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from autotune.search_space.plan import Plan
from autotune.trials.blocks import check_found, replace_module
from autotune.trials.compiling import is_compiled
from autotune.trials.failure import InvalidPlanError

# What selective checkpointing keeps: the operators that cost arithmetic. The rest, pointwise and
# normalisation, is cheaper to compute again than to hold (as in torchtitan's operator policy).
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
_COUNT = "num_batches_tracked"


def apply_activation_checkpointing(
    model: nn.Module, plan: Plan, blocks: list[nn.Module]
) -> list[nn.Module]:
    """Wrap every first, second or fourth block, so that its activations are recomputed.

    Returns:
        The blocks as they are now.
    """
    mode = str(plan.get("activation_checkpointing", "none"))
    if mode == "none":
        return blocks
    check_found(blocks, mode)
    return [
        block if i % _EVERY[mode] else _checkpoint_in_place(model, block, plan, mode)
        for i, block in enumerate(blocks)
    ]


def _checkpoint_in_place(model: nn.Module, block: nn.Module, plan: Plan, mode: str) -> nn.Module:
    wrapped = _checkpointed(block, mode, compiled=is_compiled(plan))
    replace_module(model, block, wrapped)
    return wrapped


def _checkpointed(block: nn.Module, mode: str, *, compiled: bool) -> nn.Module:
    contexts = _selective_contexts if mode == "selective" else noop_context_fn
    if not compiled and next(block.buffers(), None) is not None:
        contexts = partial(_contexts_leaving_state, block, contexts)
    elif mode != "selective":
        return checkpoint_wrapper(block)  # the compiler takes no context that does nothing
    return checkpoint_wrapper(block, context_fn=contexts)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_keep_arithmetic)


def _keep_arithmetic(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts_leaving_state(block: nn.Module, contexts: Any) -> Any:
    """Return the contexts of the forward pass and of its repetition, which changes no buffer."""
    forward, again = contexts()
    return forward, _recomputing(block, again)


@contextlib.contextmanager
def _recomputing(block: nn.Module, policy: Any) -> Iterator[None]:
    norms = [m for m in block.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    known = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
    others = {name: b for name, b in block.named_buffers() if id(b) not in known}
    before = {name: buffer._version for name, buffer in others.items()}  # noqa: SLF001  counts writes
    try:
        with contextlib.ExitStack() as stack:
            for norm in norms:
                stack.enter_context(_standing_still(norm))
            stack.enter_context(policy)
            yield
    finally:  # torch leaves by an exception once it has all that it needs
        _check_not_written(others, before)


def _check_not_written(buffers: Mapping[str, Tensor], before: Mapping[str, int]) -> None:
    """Check that the writes to each buffer are as many as before.

    Raises:
        InvalidPlanError: naming the buffer.
    """
    written = [name for name, b in buffers.items() if b._version != before[name]]  # noqa: SLF001
    if written:
        raise InvalidPlanError(
            f"a block's forward pass writes to its buffer {written[0]}, which checkpointing would "
            "do twice in each step; use activation_checkpointing=none"
        )


@contextlib.contextmanager
def _standing_still(norm: _NormBase) -> Iterator[None]:
    """Let the norm compute as in training, and leave its running statistics as they are."""
    momentum, count = norm.momentum, norm._buffers[_COUNT]  # noqa: SLF001  see below
    # Without statistics to write to, a norm saves other tensors for the backward pass.
    norm.momentum = 0.0
    norm._buffers[_COUNT] = None  # noqa: SLF001  a buffer that is None is not counted up
    try:
        yield
    finally:
        norm.momentum, norm._buffers[_COUNT] = momentum, count  # noqa: SLF001
