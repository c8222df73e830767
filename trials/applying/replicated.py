"""Sharding `ddp` and `zero1`: each rank holds the whole model, gradients are averaged."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from autotune.search_space.plan import Plan
from autotune.trials.applying.batch import accumulation
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import Ranks
from autotune.trials.workload import ComputeLoss

COMM_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
DDP_DEFAULT_BUCKET_MB = 25
# Forward passes after which unused parameters are no longer looked for. In a trial they come
# before what is measured.
_NUM_CHECKED = 7
# What DDP says in the step after one that left out a parameter which the first step used.
_UNUSED_LATER_ERROR = "Expected to have finished reduction in the prior iteration"
# The autograd node of reentrant checkpointing, which builds the graph of its part of the model in
# the backward pass only.
_REENTRANT_NODE = "CheckpointFunctionBackward"


class _LossModule(nn.Module):
    """The loss as a module's forward pass, which is what DDP prepares its buckets around.

    So `compute_loss` gets the user's own model and may use any part of it. With the wrapped
    model, gradients would be averaged only after a plain call of the whole model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        return compute_loss(self.model, batch)


class Replicated:
    """A model under DistributedDataParallel.

    DDP waits for the gradient of every parameter, unless it is told to search the graph of each
    step for unused parameters (`find_unused_parameters`). The search costs time, so the first
    steps tell whether it is needed. With a static graph DDP finds out by itself.
    """

    casts = False

    def __init__(self, model: nn.Module, plan: Plan, ranks: Ranks) -> None:
        self._loss_module, self._plan, self._ranks = _LossModule(model), plan, ranks
        self.ddp = _ddp(self._loss_module, plan)
        self._waits_for_all = not _is_static(plan)
        self._num_to_check = _NUM_CHECKED if self._waits_for_all else 0

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """Return the loss of this rank's batch."""
        loss: Tensor = self.ddp(compute_loss, batch)
        if not self._num_to_check or not torch.is_grad_enabled():
            return loss
        self._num_to_check -= 1
        (any_unused,) = self._ranks.worst(has_unused_parameters(loss, self._loss_module))
        return self._with_search(loss) if any_unused else loss

    def _with_search(self, loss: Tensor) -> Tensor:
        """Replace DDP by one that searches for unused parameters; keep the forward pass."""
        due = self.ddp.require_backward_grad_sync
        self.ddp._remove_autograd_hooks()  # noqa: SLF001  two would average twice
        self.ddp = _ddp(self._loss_module, self._plan, find_unused=True)
        self._num_to_check, self._waits_for_all = 0, False
        self.sync_gradients(due=due)
        again: Tensor = self.ddp(lambda model, batch: loss, None)
        return again

    def sync_gradients(self, *, due: bool) -> None:
        """Average gradients in the next backward pass if it is due, else accumulate them."""
        # What `no_sync()` does around a block; forward and backward are two calls here.
        self.ddp.require_backward_grad_sync = due

    def check_after_backward(self) -> None:
        """Check that no parameter was unused in this step only.

        Raises:
            InvalidPlanError: when other ranks would wait for ever for a gradient of this one.
        """
        is_due = self.ddp.require_backward_grad_sync
        if not (self._waits_for_all and is_due) or self._num_to_check:
            return
        try:
            # DDP checks at the beginning of the next step, which the ranks that wait never reach.
            # Its buckets are rebuilt already, so this call does nothing but check.
            self.ddp.reducer._rebuild_buckets()  # noqa: SLF001  nothing public checks
        except RuntimeError as error:
            if _UNUSED_LATER_ERROR not in str(error):
                raise
            raise InvalidPlanError(
                f"a step left out parameters that the first {_NUM_CHECKED} batches used, for "
                "which the other ranks wait; let compute_loss use the same parameters in every "
                "step, if only by adding 0 * parameter.sum()"
            ) from error


def has_unused_parameters(loss: Tensor, model: nn.Module) -> bool:
    """Whether a trainable parameter is missing from the autograd graph of the loss.

    False where the graph hides parameters, as with reentrant checkpointing.
    """
    unused = {id(p) for p in model.parameters() if p.requires_grad}
    last = getattr(loss, "grad_fn", None)  # whether it is a tensor is checked later
    seen, to_visit = {last}, [last] if last else []
    while to_visit:
        node = to_visit.pop()
        if type(node).__name__ == _REENTRANT_NODE:
            return False
        unused.discard(id(getattr(node, "variable", None)))
        inputs = {each for each, _ in node.next_functions if each} - seen
        seen |= inputs
        to_visit.extend(inputs)
    return last is not None and bool(unused)


def _ddp(
    loss_module: _LossModule, plan: Plan, *, find_unused: bool = False
) -> DistributedDataParallel:
    bucket_mb = int(plan.get("bucket_mb", DDP_DEFAULT_BUCKET_MB))
    ddp = DistributedDataParallel(
        loss_module,
        # Given a size, DDP makes its first bucket as large; torch's own default starts small.
        bucket_cap_mb=None if bucket_mb == DDP_DEFAULT_BUCKET_MB else bucket_mb,
        gradient_as_bucket_view=bool(plan.get("gradient_as_bucket_view", False)),
        static_graph=_is_static(plan),
        find_unused_parameters=find_unused,
        # The DDP that searches replaces another one: parameters are alike already, and sending
        # them again would invalidate the forward pass that is kept.
        init_sync=not find_unused,
    )
    hook = COMM_HOOKS.get(str(plan.get("comm_hook", "none")))
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def _is_static(plan: Plan) -> bool:
    """Whether DDP may take the graph as static.

    A plan made for other ranks may accumulate here, with which a static graph fails.
    """
    return bool(plan.get("static_graph", False)) and accumulation(plan) == 1
