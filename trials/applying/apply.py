"""Applies a plan to a workload: the one code path of trials and of users' own training.

Order: settings of the process, seed, build on the device with the user's knobs (see `building`),
memory format, activation checkpointing, compile per block, shard (see `sharding`), compile the
whole model, optimizer, loader. Each knob has one function here or in the module of its kind:
`checkpointing`, `compiling`, `loader`, `optimizers`, `recording`, `sharding`. What compiles also
compiles large `losses`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.applying.compiler import compile_blocks, compile_model
from autotune.trials.applying.construction import build_for_parts, build_on_device
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.losses import compiled_large_losses
from autotune.trials.applying.memory import apply_activation_checkpointing
from autotune.trials.applying.optimizer import build_optimizer
from autotune.trials.applying.ranks import Sharded, cuts_parameters, shard
from autotune.trials.applying.step import Step
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.seeding import seed_all
from autotune.trials.workload import Workload

_open_settings: set[contextlib.ExitStack] = set()


def build_step(
    workload: Workload, plan: Plan, device: torch.device, seed: int, ranks: Ranks = ALONE
) -> Step:
    """Return the workload's training step under `plan`, ready to be called.

    Use it as a context manager, or call `close`: process-wide settings go back then.

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
            _draw_alone(seed + ranks.place.rank, loader)
        return Step(
            model=model,
            sharded=sharded,
            optimizer=optimizer,
            loader=loader,
            compute_loss=workload.compute_loss,
            plan=plan,
            device=device,
            settings=_kept_open(settings.pop_all()),
        )


def _draw_alone(seed: int, loader: DataLoader[Any]) -> None:
    """Let this rank draw its own dropout; until here all drew alike, so that their models are.

    Orders of samples must stay alike. That of a stream may come from torch's numbers on the host.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _kept_open(settings: contextlib.ExitStack) -> contextlib.ExitStack:
    """Keep the settings until they are closed, also when only parts of the step are kept."""
    _open_settings.add(settings)
    settings.callback(_open_settings.discard, settings)
    return settings


def build_model(
    workload: Workload, plan: Plan, device: torch.device, ranks: Ranks
) -> tuple[nn.Module, Sharded]:
    """Return the model on its device, checkpointed, compiled (lazily) and sharded."""
    cut = cuts_parameters(plan, ranks.place)
    if cut:
        model = build_for_parts(workload, plan, device, ranks)
    else:
        model = build_on_device(workload, plan, device)
    if plan.get("memory_format", "contiguous") == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _into_training(model)
    blocks = find_blocks(model, workload)
    blocks = apply_activation_checkpointing(model, plan, blocks)
    compile_blocks(model, blocks, plan)
    sharded = shard(model, blocks, plan, ranks, device.type)
    compile_model(model, plan)
    return model, sharded


def _into_training(model: nn.Module) -> None:
    """Put the model into training, but for frozen parts in evaluation, such as a teacher.

    Parts to be trained go along: libraries give pretrained ones in evaluation, where what is
    frozen inside of them, beside an adapter, belongs to what is trained. A `train` of the user's
    own knows better, such as which norms stand still.
    """
    if model.training and type(model).train is nn.Module.train:
        for child in model.children():
            if child.training or not _is_frozen(child):
                _into_training(child)
    else:
        model.train()


def _is_frozen(module: nn.Module) -> bool:
    held = [*module.parameters(), *module.buffers()]
    return bool(held) and not any(tensor.requires_grad for tensor in held)


@contextlib.contextmanager
def process_settings(plan: Plan) -> Iterator[None]:
    """Set what torch keeps per process and the plan names; put it back after.

    The rest is left alone: it is as the user's own code has it.
    """
    with contextlib.ExitStack() as settings:
        if plan.get("precision", "fp32") == "tf32":
            settings.enter_context(_tf32())
        if plan.get("cudnn_benchmark", False):
            settings.enter_context(having(torch.backends.cudnn, "benchmark", value=True))
        if "threads" in plan:
            settings.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(int(plan["threads"]))
        if is_compiled(plan):
            settings.enter_context(compiled_large_losses())
        if plan.get("shape_padding", "measured") == "always":
            settings.enter_context(_padded_products())
        yield


def _padded_products() -> contextlib.AbstractContextManager[None]:
    """Spare the compiler its timings, in which copies count that it fuses with what is around."""
    from torch._inductor import config  # noqa: PLC0415  2 s that eager plans need not wait

    return having(config, "force_shape_pad", value=True)


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the workload uses the settings of torch 2.9, which do not mix with it
        with having(torch.backends.cuda.matmul, "fp32_precision", value="tf32"):
            yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def having(owner: Any, name: str, *, value: Any) -> Iterator[None]:
    """Give an object or a module another value of an attribute, and its own one back."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
