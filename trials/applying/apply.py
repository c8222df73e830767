"""Applies a plan to a workload: the one code path of trials and of users' own training.

The order: process-wide settings, seed, model (see `model`), optimizer, loader.
"""

import contextlib
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.search_space.plan import Plan
from autotune.trials.applying.families import process_settings
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.model import build_model
from autotune.trials.applying.optimizer import build_optimizer
from autotune.trials.applying.step import Step
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.seeding import seed_all
from autotune.trials.workload import Workload

# Settings of steps that were not closed, as a user may keep only parts of one, and of processes.
_open_settings: set[contextlib.ExitStack] = set()


def build_step(
    workload: Workload, plan: Plan, device: torch.device, seed: int, ranks: Ranks = ALONE
) -> Step:
    """Return the workload's training step under `plan`, ready to be called.

    Use it as a context manager, or call `close`, to restore process-wide settings.

    Raises:
        WorkloadError: when the workload breaks its contract.
        InvalidPlanError: when the plan cannot be applied to this workload.
    """
    with contextlib.ExitStack() as settings:
        settings.enter_context(process_settings(plan))
        seed_all(seed)
        model, sharded = build_model(workload, plan, device, ranks)
        optimizer = build_optimizer(workload, plan, model, ranks.place)
        loader = build_loader(workload, plan, seed, ranks)
        if ranks.place.rank:
            _seed_rank(seed + ranks.place.rank, loader)
        return Step(
            model=model,
            sharded=sharded,
            optimizer=optimizer,
            loader=loader,
            compute_loss=workload.compute_loss,
            plan=plan,
            device=device,
            settings=kept_open(settings.pop_all()),
        )


def _seed_rank(seed: int, loader: DataLoader[Any]) -> None:
    """Seed this rank's dropout; until here all ranks have one seed, so that models are alike.

    The order of samples must stay alike. A stream may draw its order from torch's generator on
    the host, so for a stream only the devices' generators are seeded.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def kept_open(settings: contextlib.ExitStack) -> contextlib.ExitStack:
    """Keep the settings until they are closed, also when the step itself is garbage."""
    _open_settings.add(settings)
    settings.callback(_open_settings.discard, settings)
    return settings
