"""Values that exclude each other: each has its place in the space, but not in one plan."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan

FSDP = ("fsdp_zero2", "fsdp_zero3", "hsdp")
# Those for which torch's `DTensor` has a rule.
_FUSED_ON_PARTS = ("Adam", "AdamW")
_HALF = ("bf16", "fp16")
# Modes of the compiler that record CUDA graphs.
_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A combination that cannot run.

    Attributes:
        knobs: those involved, the first to give up first.
        found: whether a plan has the combination, for a workload.
        reason: why it cannot run, for the user.
    """

    knobs: tuple[str, ...]
    found: Callable[[Plan, WorkloadFacts], bool]
    reason: str


# Seen on two ranks on a CPU (torch 2.13), save these: channels_last, from the sources of
# `fully_shard`; CUDA graphs, from https://github.com/pytorch/pytorch/issues/164264 and
# https://github.com/pytorch/pytorch/issues/169545, and from
# https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        knobs=("static_graph", "accumulation"),
        found=lambda plan, facts: (
            bool(plan.get("static_graph", False)) and int(plan.get("accumulation", 1)) > 1
        ),
        reason="with static_graph DDP averages gradients in every backward pass, which "
        "accumulation puts off",
    ),
    Conflict(
        knobs=("compile_mode", "accumulation"),
        found=lambda plan, facts: records_parts(plan) and int(plan.get("accumulation", 1)) > 1,
        reason="each replay of a CUDA graph overwrites the gradients that the one before it left "
        "in its memory; use compile_mode=default",
    ),
    Conflict(
        knobs=("sharding", "precision"),
        found=lambda plan, facts: facts.has_batch_norm and casts_blocks(plan),
        reason="FSDP computes batch norms in half precision, whose running statistics are fp32; "
        "use sharding=ddp",
    ),
    Conflict(
        knobs=("memory_format", "sharding"),
        found=lambda plan, facts: (
            _is_fsdp(plan) and plan.get("memory_format", "contiguous") == "channels_last"
        ),
        reason="FSDP cuts parameters along their first dimension in memory, and channels_last "
        "orders them in another way",
    ),
    Conflict(
        knobs=("compile_mode", "sharding"),
        found=lambda plan, facts: _is_fsdp(plan) and records_parts(plan),
        reason="CUDA graphs replay fixed addresses, and FSDP gathers parameters to new ones; "
        "use compile_mode=default",
    ),
    Conflict(
        knobs=("optimizer_impl", "sharding"),
        found=lambda plan, facts: (
            _is_fsdp(plan)
            and plan.get("optimizer_impl", "default") == "fused"
            and facts.optimizer_class not in _FUSED_ON_PARTS
        ),
        reason="torch has no fused kernel of this optimizer for the parts that FSDP makes; "
        "use optimizer_impl=foreach",
    ),
    Conflict(
        knobs=("cuda_graph", "compile_mode"),
        found=lambda plan, facts: _is_recorded(plan) and records_parts(plan),
        reason="that mode records CUDA graphs of its own, which cannot be recorded in turn; use "
        "compile_mode=default",
    ),
    Conflict(
        knobs=("cuda_graph", "optimizer_impl"),
        found=lambda plan, facts: (
            _is_recorded(plan)
            and facts.recordable_only_fused
            and plan.get("optimizer_impl", "default") != "fused"
        ),
        reason="only the fused kernel of this optimizer reads its rate from the device; use "
        "optimizer_impl=fused",
    ),
    Conflict(
        knobs=("cuda_graph", "precision"),
        found=lambda plan, facts: _is_recorded(plan) and plan.get("precision", "fp32") == "fp16",
        reason="with fp16 the host looks at the gradients before it lets the optimizer step",
    ),
    Conflict(
        knobs=("cuda_graph", "accumulation"),
        found=lambda plan, facts: _is_recorded(plan) and int(plan.get("accumulation", 1)) > 1,
        reason="with accumulation not every call ends in a step of the optimizer",
    ),
    Conflict(
        knobs=("cuda_graph", "activation_checkpointing"),
        found=lambda plan, facts: (
            _is_recorded(plan) and plan.get("activation_checkpointing", "none") != "none"
        ),
        reason="checkpointing reads the state of the random numbers on the host",
    ),
)


def conflict(plan: Plan, facts: WorkloadFacts) -> Conflict | None:
    """Return the first combination in the plan that cannot run, None for a plan that can."""
    return next((one for one in CONFLICTS if one.found(plan, facts)), None)


def _is_recorded(plan: Plan) -> bool:
    return plan.get("cuda_graph", "off") == "step"


def records_parts(plan: Plan) -> bool:
    """Whether the compiler records CUDA graphs of what it compiles."""
    return plan.get("compile_mode", "off") in _CUDA_GRAPH_MODES


def casts_blocks(plan: Plan) -> bool:
    """Whether whole blocks are cast to half precision, as FSDP does, and not by operation."""
    return _is_fsdp(plan) and plan.get("precision", "fp32") in _HALF


def _is_fsdp(plan: Plan) -> bool:
    return plan.get("sharding", "ddp") in FSDP
