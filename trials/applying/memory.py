"""Activation checkpointing: wraps blocks so that their activations are recomputed.

A block that is run again must give the same and leave nothing else behind. Statistics that norms
keep would be updated twice for each step, so they stand still while an eager block is recomputed.
(Compiled, the update is in the graph of the forward pass alone, unless that graph breaks.) Of
other state nobody can tell what a second pass does to it. So the first backward pass, in which
blocks are run again, must leave everything as it was, or the plan is refused.
"""

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import check_found, replace_module
from autotune.trials.applying.written import Look, look_at
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
_PLAIN = (bool, int, float, complex, str)


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
    if not compiled and any(map(_keeps_statistics, block.modules())):
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
    with contextlib.ExitStack() as stack:
        for norm in filter(_keeps_statistics, block.modules()):
            stack.enter_context(_standing_still(norm))
        stack.enter_context(policy)
        yield


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.track_running_stats


@contextlib.contextmanager
def _standing_still(norm: Any) -> Iterator[None]:
    """Let the norm compute as in training, and leave its running statistics as they are."""
    momentum, count = norm.momentum, norm._buffers[_COUNT]  # noqa: SLF001  see below
    # Without statistics to write to, a norm saves other tensors for the backward pass.
    norm.momentum = 0.0
    norm._buffers[_COUNT] = None  # noqa: SLF001  a buffer that is None is not counted up
    try:
        yield
    finally:
        norm.momentum, norm._buffers[_COUNT] = momentum, count  # noqa: SLF001


_Place = tuple[nn.Module, str, str]  # a module, and the kind and name of what it holds
_Remembered = Look | bool | int | float | complex | str


class FirstPass:
    """What the checkpointed blocks of a model remember when its first backward pass begins.

    Costs nothing once that is through.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        is_checkpointed = plan.get("activation_checkpointing", "none") != "none"
        self._parts = [m for m in model.modules() if isinstance(m, CheckpointWrapper)]
        self._is_over = not is_checkpointed
        self._before: dict[_Place, _Remembered] = {}

    def has_run_forward(self) -> None:
        """Look at the blocks."""
        if not self._is_over:
            self._before = self._memory()

    def has_run_backward(self) -> None:
        """Look again.

        Raises:
            InvalidPlanError: naming what changed as blocks were run again.
        """
        if self._is_over:
            return
        now, self._is_over = self._memory(), True
        for place, before in self._before.items():
            if not _is_like(before, now.get(place)):
                _, kind, name = place
                raise InvalidPlanError(
                    f"a block's forward pass writes to its {kind} {name}, which checkpointing "
                    "would do twice in each step; use activation_checkpointing=none"
                )
        self._before = {}

    def _memory(self) -> dict[_Place, _Remembered]:
        named = itertools.chain.from_iterable(part.modules() for part in self._parts)
        return {place: seen for module in named for place, seen in _remembered(module)}


def _is_like(before: _Remembered, now: _Remembered | None) -> bool:
    if isinstance(before, Look) and isinstance(now, Look):
        return before.is_like(now)
    return before is now or before == now  # NaN is only itself


def _remembered(module: nn.Module) -> Iterator[tuple[_Place, _Remembered]]:
    for name, buffer in module.named_buffers(recurse=False):
        # Norms that stand still write to their statistics what was there before.
        if name == _COUNT or not _keeps_statistics(module):
            yield (module, "buffer", name), look_at(buffer)
    for name, value in vars(module).items():
        if isinstance(value, _PLAIN):
            yield (module, "attribute", name), value
