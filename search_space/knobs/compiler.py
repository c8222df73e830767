"""Compiler: what torch.compile compiles, and how."""

from collections.abc import Mapping

from autotune.search_space.bound import Bound
from autotune.search_space.hardware import DeviceKind
from autotune.search_space.knobs.batch import accumulates
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    NO_EFFECT,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Out,
    Reasons,
    both,
    cuda_only,
    needs_blocks,
    speed_by_device,
)
from autotune.search_space.knobs.memory import checkpoints
from autotune.search_space.knobs.ranks import is_fsdp
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

_MODES = (
    "off",
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
)
_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # these record CUDA graphs
_PADDING = ("measured", "always")
_BUDGETS = (1.0, 0.7, 0.5, 0.3)
_WORTH_PADDING = 0.01  # share of the model's FLOPs in products that the compiler may pad
# Part of its time that a product loses if the compiler's own timing leaves it unpadded: the timing
# counts copies that the program does not need, and it is noisy.
_LOSS_UNPADDED = 0.1
_HOST_OF_BLOCKS = 0.7  # factor on the host's speed when it calls compiled blocks one by one
# A Llama on an H200 with budgets of 0.5 and 0.3, which kept 0.54 and 0.42 of the activations;
# checkpointing every block kept 0.29 and ran at 0.81 of the speed. That of 0.7 lies between.
_BUDGET_SPEED: dict[Value, Effect] = {0.7: both(0.97), 0.5: both(0.94), 0.3: both(0.89)}
# First steps in seconds before anything is known, from runs of middle-sized models.
_FIRST_STEP_S: dict[DeviceKind, dict[Value, float]] = {
    "cpu": {"default": 30.0},
    "cuda": {
        "default": 15.0,
        "reduce-overhead": 20.0,
        "max-autotune-no-cudagraphs": 150.0,
        "max-autotune": 180.0,
    },
}
# Part of the whole model's first step that compiling the distinct blocks takes.
_FIRST_STEP_OF_BLOCKS: dict[DeviceKind, float] = {"cpu": 0.65, "cuda": 0.45}


def is_compiled(plan: Plan) -> bool:
    """Whether the plan compiles anything."""
    return plan.get("compile_mode", "off") != "off"


CompilerSetup = tuple[Value, Value]
"""A mode and a scope: plans that share both compile in about the same time."""


def compiler_setup(plan: Plan) -> CompilerSetup | None:
    """Return the mode and the scope that the plan compiles with, None where it does not."""
    if not is_compiled(plan):
        return None
    return plan["compile_mode"], plan.get("compile_scope", "model")


def compiles_blocks(plan: Plan) -> bool:
    """Whether the plan compiles the repeated blocks one by one, not the whole model."""
    return is_compiled(plan) and plan.get("compile_scope", "model") == "block"


def records_cuda_graphs(plan: Plan) -> bool:
    """Whether the compiler records CUDA graphs of what it compiles."""
    return plan.get("compile_mode", "off") in _GRAPH_MODES


def usual_first_step_s(plan: Plan, device_kind: DeviceKind) -> float:
    """Return the seconds of the first step of a middle-sized model with an empty cache."""
    whole_s = _FIRST_STEP_S[device_kind][plan["compile_mode"]]
    return whole_s * (_FIRST_STEP_OF_BLOCKS[device_kind] if compiles_blocks(plan) else 1.0)


def _modes(site: Site) -> Offer:
    # CUDA graphs and Triton templates are what the other modes add; a CPU has neither. Both are
    # made for each shape anew: a masked LM of uneven texts was not through with that after 78 s.
    is_even_gpu = site.hardware.device_kind == "cuda" and not site.facts.uneven_batches
    return _broken(site) or (_MODES if is_even_gpu else ("off", "default"))


def _missing_modes(site: Site) -> str:
    if site.hardware.device_kind != "cuda" or not site.facts.uneven_batches:
        return ""
    return "the others compile or record each shape anew, and batches differ in shape"


def _scopes(site: Site) -> Offer:
    return _broken(site) or needs_blocks(site, ("model", "block"))


def _padding(site: Site) -> Offer:
    share, offer = site.facts.uneven_share, _broken(site) or cuda_only(site, _PADDING)
    if isinstance(offer, Out):
        return offer
    if share is None and site.facts.command is not None:
        return Out("which weights the model multiplies is not looked at in a command")
    if share is None:
        return Out("the model's matrix products are not known: its code needs values to run")
    if share < _WORTH_PADDING:
        return Out("no weight of a large matrix product has a side that is no multiple of 8")
    return offer


def _budgets(site: Site) -> Offer:
    return _broken(site) or cuda_only(site, _BUDGETS)


def _broken(site: Site) -> Out | None:
    problem = site.facts.compiler_problem
    return Out(f"torch.compile does not work here: {problem}") if problem else None


def _beside_mode(value: Value, beside: Mapping[str, Effect]) -> Effect:
    """Return the effect of compiling blocks beside that of `compile_mode` on the whole model.

    Blocks are called from Python one by one, so the host gains less than with the whole model.
    """
    if value != "block" or "compile_mode" not in beside:
        return NO_EFFECT
    return Effect(host=_HOST_OF_BLOCKS / beside["compile_mode"].host)


def _padding_speed(value: Value, site: Site) -> Effect:
    lost = _LOSS_UNPADDED * (site.facts.uneven_share or 0.0)
    return Effect(device=1 / (1 - lost)) if value == "always" else NO_EFFECT


COMPILE_MODE = Knob(
    name="compile_mode",
    doc="torch.compile mode; off runs eagerly",
    numerics=Numerics.ROUNDING,
    values=_modes,
    known=_MODES,
    missing=_missing_modes,
    # Fusion: a UNet whose bf16 step was bound by memory bandwidth for 81 % of its time ran 1.9
    # times as fast, a T5 with 68 % 1.9 times, a GPT and a ResNet 1.2 to 1.4 times. Host: an MLP of
    # 17 layers. All on a Hopper GPU.
    speed=speed_by_device(
        cuda={
            "default": Effect(host=1.3, pointwise=2.7),
            "reduce-overhead": Effect(host=10.0, pointwise=2.75),
            "max-autotune-no-cudagraphs": Effect(host=1.3, pointwise=2.75),
            "max-autotune": Effect(host=10.0, pointwise=2.8),
        },
        cpu={"default": both(1.3)},
    ),
    acts_on=frozenset({Bound.LAUNCHES, Bound.MEMORY_BANDWIDTH}),
    saves=None,
    # Modes that record CUDA graphs keep memory pools of their own.
    memory=MemoryUse(
        saving={"default": 1, "max-autotune-no-cudagraphs": 1},
        activations={"default": 0.85, "max-autotune-no-cudagraphs": 0.85},
        why_less="fused kernels keep less between them",
    ),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="fused kernels and fewer launches",
        back={"off": "compiled code may be slower here"},
    ),
    conflicts=(
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
        Conflict(
            knobs=("compile_mode", "accumulation"),
            found=lambda plan, facts: records_cuda_graphs(plan) and accumulates(plan),
            reason="each replay of a CUDA graph overwrites the gradients that the one before it "
            "left in its memory; use compile_mode=default",
        ),
        # https://github.com/pytorch/pytorch/issues/164264 and issues/169545 of the same.
        Conflict(
            knobs=("compile_mode", "sharding"),
            found=lambda plan, facts: is_fsdp(plan) and records_cuda_graphs(plan),
            reason="CUDA graphs replay fixed addresses, and FSDP gathers parameters to new ones; "
            "use compile_mode=default",
        ),
    ),
    lengthens_start=True,
)
COMPILE_SCOPE = Knob(
    name="compile_scope",
    doc="compile the whole model, or its blocks and layers one by one (compiles faster)",
    numerics=Numerics.ROUNDING,
    values=_scopes,
    known=("model", "block"),
    active=is_compiled,
    speed=speed_by_device(cuda={"block": Effect(device=0.98)}, cpu={"block": both(0.97)}),
    correction=_beside_mode,
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(saving={}),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ALL_RANKS,  # FSDP gathers, runs and frees what is compiled as one
    reasons=Reasons(
        change="less to compile, nearly as fast",
        back={"model": "the compiler sees more at once, for more time"},
    ),
    lengthens_start=True,
)
SHAPE_PADDING = Knob(
    name="shape_padding",
    doc="pad uneven matrix products where the compiler times a gain, or always (more memory)",
    numerics=Numerics.ROUNDING,
    values=_padding,
    known=_PADDING,
    active=is_compiled,
    speed=_padding_speed,
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(saving={"measured": 1, None: 1}),  # padded products are copies
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="no product is left at a size that tensor cores read slowly",
        back={"measured": "padding may cost more than it saves"},
    ),
    cannot_fail=_PADDING,
    lengthens_start=True,
)
ACTIVATION_MEMORY_BUDGET = Knob(
    name="activation_memory_budget",
    doc="the part of its activations that compiled code may keep for the backward pass; it "
    "computes the rest again, the cheapest first",
    numerics=Numerics.ROUNDING,
    values=_budgets,
    known=_BUDGETS,
    active=is_compiled,
    speed=speed_by_device(cuda=_BUDGET_SPEED),
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(
        saving={0.7: 1, 0.5: 2, 0.3: 3},
        activations={0.7: 0.75, 0.5: 0.55, 0.3: 0.42},
        why_less="compiled code computes activations again instead of keeping them",
        makes_room=True,
    ),
    recompiles_on=frozenset({"cuda"}),
    measured_on=MeasuredOn.ALL_RANKS,
    reasons=Reasons(
        change="room for the batch, at the least arithmetic that the compiler finds",
        back={1.0: "nothing is computed twice beyond what is cheaper than reading it"},
    ),
    conflicts=(
        Conflict(
            knobs=("activation_memory_budget", "activation_checkpointing"),
            found=lambda plan, facts: (
                plan.get("activation_memory_budget", 1.0) != 1.0 and checkpoints(plan)
            ),
            reason="each of them chooses what is computed again; inside of a checkpointed block "
            "the compiler has no choice left",
        ),
    ),
    cannot_fail=_BUDGETS[:1],
    lengthens_start=True,
)
KNOBS = (COMPILE_MODE, COMPILE_SCOPE, SHAPE_PADDING, ACTIVATION_MEMORY_BUDGET)
