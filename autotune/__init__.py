"""autotune: the fastest way to train a given PyTorch model on given hardware.

    plan = autotune.load_plan("plan.yaml")
    with autotune.apply(plan, workload="model.py") as step:
        for batch in step.loader:
            loss = step(batch)

Importing this package imports no torch; `apply` does.
"""

from typing import TYPE_CHECKING

from autotune.errors import (
    AutotuneError,
    ClusterError,
    DiskFullError,
    InterruptedRunError,
    NotAllowedError,
    NotFoundError,
    NothingRanError,
    PlanError,
    ResourceError,
    ServerError,
    StoreError,
    UsageError,
    WorkloadError,
)
from autotune.search_space.plan import Plan

if TYPE_CHECKING:
    import os
    from types import ModuleType
    from typing import Any

    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from autotune.service.client import Client
    from autotune.trials.applying.step import Step

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "Client",
    "ClusterError",
    "DiskFullError",
    "InterruptedRunError",
    "NotAllowedError",
    "NotFoundError",
    "NothingRanError",
    "Plan",
    "PlanError",
    "ResourceError",
    "ServerError",
    "StoreError",
    "UsageError",
    "WorkloadError",
    "apply",
    "load_plan",
    "prepare",
]


def __getattr__(name: str) -> "Any":
    """Import what most programs do not need, when it is asked for."""
    if name == "Client":
        from autotune.service.client import Client  # noqa: PLC0415  `import autotune` stays light

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_plan(path: "str | os.PathLike[str]") -> Plan:
    """Read the plan out of a plan file (YAML, JSON or TOML), with the ranks it was made for.

    Raises:
        PlanError: for a file that is no plan file, or names unknown knobs or values.
    """
    from dataclasses import replace  # noqa: PLC0415  `import autotune` stays light
    from pathlib import Path  # noqa: PLC0415  the same

    from autotune.export.plan_file import load_plan_file  # noqa: PLC0415  the same

    file = load_plan_file(Path(path))
    return replace(file.plan, ranks=file.ranks)


def apply(
    plan: Plan,
    workload: "str | os.PathLike[str] | ModuleType",
    *,
    device: "str | torch.device | None" = None,
    seed: int = 0,
) -> "Step":
    """Build the workload under `plan`; see `autotune.trials.applying.training.apply`."""
    from autotune.trials.applying import training  # noqa: PLC0415  torch is imported here, on demand

    return training.apply(plan, workload, device=device, seed=seed)


def prepare(
    model: "nn.Module", optimizer: "Optimizer", loader: "DataLoader[Any]", *, plan: Plan
) -> "tuple[nn.Module, Optimizer, DataLoader[Any]]":
    """Apply `plan` in a loop of your own; see `autotune.trials.command.prepared.prepare`."""
    from autotune.trials.command import prepared  # noqa: PLC0415  torch is imported here, on demand

    return prepared.prepare(model, optimizer, loader, plan)
