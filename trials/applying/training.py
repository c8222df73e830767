"""`autotune.apply`: a plan in the user's own training, by the code path that trials measured."""

import os
import sys
from pathlib import Path
from types import ModuleType

import torch

from autotune.errors import PlanError, nearest
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.batch import fit_ranks
from autotune.trials.applying.kernels import load_plans_kernels
from autotune.trials.applying.loader import dataset_len
from autotune.trials.applying.step import Step
from autotune.trials.process_group import device_of, torchrun_ranks
from autotune.trials.workload import Workload, default_batch_size, load_workload, read_workload


def apply(
    plan: Plan,
    workload: str | os.PathLike[str] | ModuleType,
    *,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Step:
    """Build the workload's model, optimizer and loader under `plan`.

    Under torchrun this joins the other ranks, unless the script has set up `torch.distributed`
    before. Each rank gets its share of the model and of the samples.

    Args:
        plan: what to apply; knobs it leaves out stay as the workload's own code has them. Where a
            file of kernels came with it, the compiler starts from them.
        workload: path of the model.py, or a module that defines the same functions.
        device: where to train; default: the GPU if torch sees one, else the CPU. Each rank of
            several takes the GPU of its own local rank.
        seed: for the parameters and the order of the samples.

    Returns:
        A step to call with each batch of `step.loader`; a context manager.

    Raises:
        WorkloadError: when the workload breaks its contract.
        PlanError: when the plan names a knob that neither autotune nor the workload has, or was
            made for another number of ranks and GLOBAL_BATCH_SIZE does not say how to adjust it,
            or when the plan cannot be applied to this workload.
    """
    contract = _load(workload)
    _check_knobs(plan, contract)
    chosen = torch.device(device or _default_device())
    ranks = torchrun_ranks(chosen.type)
    if ranks.place.world_size > 1:
        chosen = device_of(ranks.place, chosen.type)
    values = plan.values
    if "batch_size" not in plan:
        values = {"batch_size": _batch_size(contract, ranks.place.world_size), **values}
    complete = Plan.of(values)
    load_plans_kernels(plan, chosen)
    fitting = fit_ranks(complete, plan.ranks, ranks.place.world_size, contract.global_batch_size)
    return build_step(contract, fitting, chosen, seed, ranks)


def _batch_size(workload: Workload, num_ranks: int) -> int:
    if workload.batch_size:
        return workload.batch_size
    num_samples = dataset_len(workload.build_dataset()) or 0
    return default_batch_size(workload.global_batch_size, num_ranks, num_samples // num_ranks)


def _load(workload: str | os.PathLike[str] | ModuleType) -> Workload:
    if isinstance(workload, ModuleType):
        file = getattr(workload, "__file__", None)  # what is typed into a notebook has none
        return read_workload(workload, Path(file or workload.__name__))
    return load_workload(Path(workload).resolve(), sys.argv[1:])


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_knobs(plan: Plan, workload: Workload) -> None:
    for name in plan:
        if name not in BY_NAME and name not in workload.knobs:
            hint = nearest(name, [*BY_NAME, *workload.knobs])
            raise PlanError(
                f"the plan sets {name!r}, which is neither a knob of autotune nor in the KNOBS of "
                f"{workload.path.name}{hint}"
            )
