"""Applies a plan to a workload: the one code path of trials and of users' own training.

Order: settings of the process, seed, build on the device with the user's knobs (see `building`),
memory format, activation checkpointing, compile per block, shard (see `sharding`), compile the
whole model, optimizer, loader. Each knob has one function here or in the module of its kind:
`loader`, `optimizers`, `recording`, `sharding`. What compiles also compiles large `losses`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from autotune.search_space.plan import Plan
from autotune.trials.blocks import find_beside, find_blocks, replace_module
from autotune.trials.building import build_for_parts, build_on_device
from autotune.trials.failure import InvalidPlanError
from autotune.trials.loader import build_loader
from autotune.trials.losses import compiled_large_losses
from autotune.trials.optimizers import build_optimizer
from autotune.trials.ranks import ALONE, Ranks
from autotune.trials.sharding import Sharded, cuts_parameters, shard
from autotune.trials.step import Step
from autotune.trials.workload import Workload

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


def build_step(
    workload: Workload, plan: Plan, device: torch.device, seed: int, ranks: Ranks = ALONE
) -> Step:
    """Return the workload's training step under `plan`, ready to be called.

    Use it as a context manager, or call `close`: process-wide settings go back then.

    Raises:
        WorkloadError: when the workload breaks its contract.
        InvalidPlanError: when the plan cannot be applied to this workload.
    """
    settings = contextlib.ExitStack()
    settings.enter_context(process_settings(plan))
    torch.manual_seed(seed)
    model, sharded = build_model(workload, plan, device, ranks)
    step = Step(
        model=model,
        sharded=sharded,
        optimizer=build_optimizer(workload, plan, model, ranks.place),
        loader=build_loader(workload, plan, seed, ranks),
        compute_loss=workload.compute_loss,
        plan=plan,
        device=device,
        settings=settings,
    )
    if ranks.place.rank:
        # Alike until here, so that the models are; from now on each draws its own dropout.
        torch.manual_seed(seed + ranks.place.rank)
    return step


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
    blocks = find_blocks(model.train(), workload)
    blocks = apply_activation_checkpointing(model, plan, blocks)
    compile_blocks(model, blocks, plan)
    sharded = shard(model, blocks, plan, ranks, device.type)
    compile_model(model, plan)
    return model, sharded


@contextlib.contextmanager
def process_settings(plan: Plan) -> Iterator[None]:
    """Set what torch keeps per process (precision, cuDNN, threads, loss); restore it after."""
    matmul = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.benchmark
    threads = torch.get_num_threads()
    try:
        if plan.get("precision", "fp32") == "tf32":
            torch.set_float32_matmul_precision("high")
        if plan.get("cudnn_benchmark", False):
            torch.backends.cudnn.benchmark = True
        torch.set_num_threads(int(plan.get("threads", threads)))
        with compiled_large_losses() if _is_compiled(plan) else contextlib.nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.benchmark = cudnn
        torch.set_num_threads(threads)


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
    _check_found(blocks, mode)
    return [
        block if i % _EVERY[mode] else _checkpoint_in_place(model, block, mode)
        for i, block in enumerate(blocks)
    ]


def _checkpoint_in_place(model: nn.Module, block: nn.Module, mode: str) -> nn.Module:
    wrapped = _checkpointed(block, mode)
    replace_module(model, block, wrapped)
    return wrapped


def _checkpointed(block: nn.Module, mode: str) -> nn.Module:
    if mode != "selective":
        return checkpoint_wrapper(block)
    return checkpoint_wrapper(block, context_fn=_selective_contexts)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_keep_arithmetic)


def _keep_arithmetic(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def compile_blocks(model: nn.Module, blocks: list[nn.Module], plan: Plan) -> None:
    """Compile each block, and what computes beside them, by itself if the plan says so.

    A model's head is one layer among many and may be a large part of the work. Where its shape
    misses what tensor cores need, as a vocabulary of 50257 does, compiled code pads it.
    """
    if plan.get("compile_scope", "model") != "block" or not _is_compiled(plan):
        return
    _check_found(blocks, "compile_scope=block")
    for module in dict.fromkeys((*blocks, *find_beside(model, blocks))):
        _compile_in_place(module, str(plan["compile_mode"]))


def compile_model(model: nn.Module, plan: Plan) -> None:
    """Compile the whole model if the plan says so; it happens at the first step."""
    if plan.get("compile_scope", "model") == "model" and _is_compiled(plan):
        _compile_in_place(model, str(plan["compile_mode"]))


def _is_compiled(plan: Plan) -> bool:
    return bool(plan.get("compile_mode", "off") != "off")


def _compile_in_place(module: nn.Module, mode: str) -> None:
    """Compile the module's forward pass, also that of torch's own containers.

    Dynamo skips frames of torch's own files, so `nn.Sequential(...).compile()` compiles nothing,
    without a word; a frame of ours in between makes it trace them. Unlike `torch.compile(module)`
    the names in the state dict stay, and FSDP's hooks around the forward pass stay outside of the
    graph, which they would break.
    """
    forward = module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    compiled = torch.compile(call, mode=None if mode == "default" else mode)
    module.forward = compiled


def check_compiled(plan: Plan) -> None:
    """Check after a first step that the plan's compilation happened.

    Raises:
        InvalidPlanError: when the compiler found nothing that it can compile.
    """
    if not _is_compiled(plan):
        return
    from torch._dynamo.utils import counters  # noqa: PLC0415  2 s that eager plans need not wait

    if not counters["stats"]["unique_graphs"]:
        raise InvalidPlanError(
            "torch.compile compiled nothing: the forward pass leaves it no graph to compile"
        )


def _check_found(blocks: list[nn.Module], wanted_by: str) -> None:
    if not blocks:
        raise InvalidPlanError(f"{wanted_by} needs repeated blocks, and the model has none")
