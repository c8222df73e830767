"""`autotune.prepare`: a plan in a training loop of the user's own, in the style of Accelerate."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, RandomSampler, Sampler

from autotune.errors import PlanError
from autotune.search_space.knobs.loader import groups_by_length
from autotune.search_space.plan import Plan, spell
from autotune.trials.applying.lengths import LengthOrder, lengths_of
from autotune.trials.applying.optimizer import with_plans_implementation
from autotune.trials.applying.precision import autocast, half_dtype
from autotune.trials.command.changes import Changes
from autotune.trials.command.root import Root

# What a loop must know of, by the values that it need not know of.
_NEEDS_THE_LOOP = {
    "precision": ("fp32", "tf32", "bf16"),
    "sharding": ("ddp",),
    "parameter_offload": ("off",),
    "cuda_graph": ("off",),
    "copy_ahead": ("off",),
}


def prepare(
    model: nn.Module, optimizer: Optimizer, loader: DataLoader[Any], plan: Plan
) -> tuple[nn.Module, Optimizer, DataLoader[Any]]:
    """Return model, optimizer and loader under a plan, for a training loop of one's own.

    The loop stays as it is: schedulers, clipping and averages of the weights keep working. Give
    schedulers the optimizer that comes back. Process-wide settings of the plan stay for as long as
    the process lives. Where `torch.distributed` has several ranks, the model comes back wrapped
    by DDP, with the plan's buckets; give the loader a distributed sampler then.

    Args:
        model: on the device where it is to train; changed in place.
        optimizer: of the model's parameters, before its first step.
        loader: a `DataLoader` with samplers of torch, or of one's own.
        plan: what to apply; knobs that it leaves out stay as they are.

    Raises:
        PlanError: for what a loop must know of: fp16, FSDP, ZeRO and recorded steps. They are
            applied by `autotune.apply`.
    """
    _check_loop_can_stay(plan)
    changes = Changes(plan)
    changes.apply_to_process()
    changes.apply_to_model(model, model, _Unwatched(), kind=_Prepared)
    changes.check_blocks()
    prepared = _on_all_ranks(model, changes)
    return prepared, with_plans_implementation(optimizer, plan), _loader(loader, changes)


class _Unwatched:
    """Nobody waits for calls of a prepared model."""

    def forward_begins(self, root: Root, args: Any, kwargs: Any) -> None:
        """Do nothing."""

    def forward_without_gradients(self) -> None:
        """Do nothing."""


class _Prepared(Root):
    """A forward pass in the plan's precision, which gives fp32 to the loop."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        half = half_dtype(self.plan)
        if half is None:
            return super().run(*args, **kwargs)
        with autocast(self.device.type, half):
            output = super().run(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: t.float() if t.dtype == half else t, output)


def _check_loop_can_stay(plan: Plan) -> None:
    for knob, values in _NEEDS_THE_LOOP.items():
        if plan.get(knob, values[0]) not in values:
            raise PlanError(
                f"{knob}={spell(plan[knob])} needs a loop that knows of it; use autotune.apply, "
                "or `autotune export RUN --for accelerate` and the like"
            )


def _on_all_ranks(model: nn.Module, changes: Changes) -> nn.Module:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return model
    device = next(model.parameters()).device
    ids = [device] if device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=ids, **changes.ddp_arguments({}))
    changes.apply_to_ddp(ddp)
    return ddp


def _loader(loader: DataLoader[Any], changes: Changes) -> DataLoader[Any]:
    """Return the loader with the plan's workers, or another one where the plan changes its batch.

    Raises:
        PlanError: when the loader makes batches in a way of its own.
    """
    size = changes.plan.get("batch_size", loader.batch_size or 0)
    is_grouped = groups_by_length(changes.plan)
    if is_grouped or ("batch_size" in changes.plan and size != loader.batch_size):
        if loader.batch_size is None:
            raise PlanError(
                f"batch_size={size}: the loader makes its batches by itself; give it that size"
            )
        loader = DataLoader(
            loader.dataset,
            batch_size=int(size),
            sampler=_grouped(loader, int(size)) if is_grouped else _sampler(loader),
            drop_last=loader.drop_last,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
        )
    changes.apply_to_loader(loader)
    return loader


def _sampler(loader: DataLoader[Any]) -> Sampler[Any] | Iterable[Any] | None:
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    return None if is_stream else loader.sampler


def _grouped(loader: DataLoader[Any], batch_size: int) -> Sampler[int]:
    """Return the loader's shuffled order with samples of similar length together.

    Raises:
        PlanError: when the loader does not shuffle, or by a sampler of its own.
    """
    if not isinstance(loader.sampler, RandomSampler):
        raise PlanError(
            f"length_bucketing=true groups a shuffled order, and the loader's is that of a "
            f"{type(loader.sampler).__name__}; give DataLoader shuffle=True"
        )
    return LengthOrder(loader.sampler, lengths_of(loader.dataset), batch_size)
