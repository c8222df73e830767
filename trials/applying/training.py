"""Using a plan in one's own training: the code path that trials measured."""

import atexit
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from autotune.errors import PlanError, nearest
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.knobs.batch import batch_does_not_divide
from autotune.search_space.plan import Plan
from autotune.search_space.site import on_ranks
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.loader import dataset_len
from autotune.trials.applying.step import Step
from autotune.trials.process_group import ALONE, Ranks, device_of, with_control
from autotune.trials.request import RankPlace
from autotune.trials.workload import Workload, default_batch_size, load_workload, read_workload


def apply(
    plan: Plan,
    workload: str | os.PathLike[str] | ModuleType,
    *,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Step:
    """Build the workload's model, optimizer and loader under `plan`.

    Under torchrun the ranks meet here, unless the script has set up `torch.distributed` before;
    then each gets its share of the model and of the samples.

    Args:
        plan: what to apply; knobs it leaves out stay as the workload's own code has them.
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
            or cannot be applied to this workload.
    """
    contract = _read(workload)
    _check_knobs(plan, contract)
    chosen = torch.device(device or _default_device())
    ranks = _ranks(chosen.type)
    if ranks.place.world_size > 1:
        chosen = device_of(ranks.place, chosen.type)
    values = plan.values
    if "batch_size" not in plan:
        values = {"batch_size": _batch_size(contract, ranks.place.world_size), **values}
    complete = Plan.of(values)
    fitting = fit_ranks(complete, plan.ranks, ranks.place.world_size, contract.global_batch_size)
    return build_step(contract, fitting, chosen, seed, ranks)


def _batch_size(workload: Workload, num_ranks: int) -> int:
    if workload.batch_size:
        return workload.batch_size
    num_samples = dataset_len(workload.build_dataset()) or 0
    return default_batch_size(workload.global_batch_size, num_ranks, num_samples // num_ranks)


def fit_ranks(
    plan: Plan, made_for: int | None, num_ranks: int, global_batch_size: int | None
) -> Plan:
    """Return the plan for `num_ranks`; only accumulation may differ from it, with a warning.

    Args:
        plan: with its batch size.
        made_for: the ranks it was measured on; None when the plan does not say.
        num_ranks: those there are.
        global_batch_size: the workload's GLOBAL_BATCH_SIZE.

    Raises:
        PlanError: when the training would be another one.
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
    accumulation = global_batch_size // samples
    warnings.warn(
        f"{wrong}; accumulation is {accumulation} instead of {plan.get('accumulation', 1)}, which "
        f"keeps GLOBAL_BATCH_SIZE={global_batch_size}. Its speed was not measured so",
        stacklevel=3,
    )
    return Plan.of({**plan.values, "accumulation": accumulation})


def _with_accumulation(plan: Plan, num_ranks: int, global_batch_size: int | None) -> Plan:
    """Return the plan with the accumulation that keeps GLOBAL_BATCH_SIZE, where there is one."""
    if global_batch_size is None:
        return plan
    size = int(plan["batch_size"])
    if global_batch_size % (size * num_ranks):
        raise PlanError(batch_does_not_divide("batch_size", size, global_batch_size, num_ranks))
    accumulation = global_batch_size // (size * num_ranks)
    if plan.get("accumulation", accumulation) != accumulation:
        raise PlanError(
            f"accumulation={plan['accumulation']} with batch_size={size}{on_ranks(num_ranks)} "
            f"does not make GLOBAL_BATCH_SIZE={global_batch_size}; leave it out, it becomes "
            f"{accumulation}"
        )
    return Plan.of({**plan.values, "accumulation": accumulation})


def _ranks_in_words(num_ranks: int | None) -> str:
    return "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"


def _ranks(device_kind: str) -> Ranks:
    """Return the ranks of torchrun, or of the script's own process group, or only this one."""
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return ALONE
        if device_kind == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device_kind == "cuda" else "gloo")
        atexit.register(_leave_the_group)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return ALONE
    return with_control(
        RankPlace(
            rank=rank,
            world_size=world_size,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
        )
    )


def _leave_the_group() -> None:
    """End the process group that `apply` began, while Python can still wait for its threads.

    A thread of gloo that holds a tensor while the interpreter is taken down aborts the process
    (https://github.com/pytorch/pytorch/pull/179291). After an exception the other ranks may be in
    a collective, and waiting for them would hang.
    """
    failed = hasattr(sys, "last_value")
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()


def _read(workload: str | os.PathLike[str] | ModuleType) -> Workload:
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
