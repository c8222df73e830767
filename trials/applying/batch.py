"""The family `batch`: samples per batch, batches per optimizer step, and moving a batch."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autotune.errors import PlanError
from autotune.search_space.knobs.batch import batch_does_not_divide
from autotune.search_space.plan import Plan
from autotune.search_space.site import on_ranks
from autotune.trials.applying.settings import Setting


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


def accumulation(plan: Plan) -> int:
    """Return the batches whose gradients are summed before the optimizer steps."""
    return int(plan.get("accumulation", 1))


def moved(batch: Any, device: torch.device, move: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch on the device: tensors in tuples, lists, dicts, or what has `to`.

    Args:
        batch: anything; what holds no tensors stays as it is.
        device: for objects with a `to` of their own.
        move: moves one tensor.
    """
    if isinstance(batch, Tensor):
        return move(batch)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict):
        changed = copy.copy(batch)  # of its own class, which may take other arguments
        changed.update((key, moved(value, device, move)) for key, value in batch.items())
        return changed
    if isinstance(batch, list | tuple):
        entries = (moved(entry, device, move) for entry in batch)
        return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)
    return batch


def fit_ranks(
    plan: Plan, made_for: int | None, num_ranks: int, global_batch_size: int | None
) -> Plan:
    """Return the plan for `num_ranks`; only accumulation may change, with a warning.

    Args:
        plan: with its batch size.
        made_for: the ranks it was measured on; None when the plan does not say.
        num_ranks: that the training has.
        global_batch_size: the workload's GLOBAL_BATCH_SIZE.

    Raises:
        PlanError: when a step would train on another number of samples.
    """
    if made_for in (None, num_ranks):
        return _with_accumulation(plan, num_ranks, global_batch_size)
    wrong = f"the plan was made for {_ranks_in_words(made_for)} and this is {num_ranks}"
    cure = f"start it with `torchrun --nproc-per-node {made_for}`, or tune for {num_ranks}"
    if global_batch_size is None:
        raise PlanError(
            f"{wrong}: each step would train on another number of samples; {cure}, or set "
            "GLOBAL_BATCH_SIZE in the workload to keep it by accumulation"
        )
    samples = int(plan["batch_size"]) * num_ranks
    if global_batch_size % samples:
        raise PlanError(
            f"{wrong}: batch_size={plan['batch_size']} on each of them does not divide "
            f"GLOBAL_BATCH_SIZE={global_batch_size}; {cure}"
        )
    needed = global_batch_size // samples
    warnings.warn(
        f"{wrong}; accumulation is {needed} instead of {accumulation(plan)}, which keeps "
        f"GLOBAL_BATCH_SIZE={global_batch_size}. The plan's speed was measured without that",
        stacklevel=3,
    )
    return Plan.of({**plan.values, "accumulation": needed})


def _with_accumulation(plan: Plan, num_ranks: int, global_batch_size: int | None) -> Plan:
    """Return the plan with the accumulation that keeps GLOBAL_BATCH_SIZE, where that is set."""
    if global_batch_size is None:
        return plan
    size = int(plan["batch_size"])
    if global_batch_size % (size * num_ranks):
        raise PlanError(batch_does_not_divide("batch_size", size, global_batch_size, num_ranks))
    needed = global_batch_size // (size * num_ranks)
    if plan.get("accumulation", needed) != needed:
        raise PlanError(
            f"accumulation={plan['accumulation']} with batch_size={size}{on_ranks(num_ranks)} "
            f"does not make GLOBAL_BATCH_SIZE={global_batch_size}; leave it out, it becomes "
            f"{needed}"
        )
    return Plan.of({**plan.values, "accumulation": needed})


def _ranks_in_words(num_ranks: int | None) -> str:
    return "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
