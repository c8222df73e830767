"""Ranks: what each of several devices holds, and what they send to each other."""

from collections.abc import Callable, Mapping

from autotune.search_space.bound import Bound
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs.batch import accumulates
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    NO_DEVICE,
    NO_MEMORY,
    ON_OFF,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Out,
    Reasons,
    Speed,
    StepPart,
    both,
)
from autotune.search_space.knobs.precision import is_half
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

FSDP = ("fsdp_zero2", "fsdp_zero3", "hsdp")
LEAST_MEMORY_SHARDING = "fsdp_zero3"
"""The sharding under which a rank holds the least memory."""

_SHARDINGS = ("ddp", "zero1", *FSDP)
_BUCKETS_MB = (25, 1, 5, 10, 50, 100, 200)
_COMM_HOOKS = ("none", "bf16", "fp16")
_ONE_RANK = "a trial has one rank, so nothing is spread or communicated"
# Speed over ddp. What each rank holds less of has to be sent more often: a GPT of 350 M parameters
# ran at 0.6 to 0.9 of ddp's speed, one of 1.3 B at up to 1.1 times, as its optimizer step is
# shared out. Both on four GPUs that NVLink connects; slower links gain more.
_SHARDING_SPEED: dict[Value, float] = {
    "ddp": 1.0,
    "zero1": 0.89,
    "fsdp_zero2": 0.75,
    "hsdp": 0.65,
    "fsdp_zero3": 0.6,
}
_SHARDING_SPEED_LARGE: dict[Value, float] = {
    "ddp": 1.0,
    "zero1": 1.02,
    "fsdp_zero2": 1.1,
    "hsdp": 1.08,
    "fsdp_zero3": 1.12,
}
_LARGE_MODEL = 700_000_000  # parameters; between the two that were measured
# The shardings that hold no more than this one, however large the optimizer's state is. hsdp
# shares everything among the ranks of one copy, zero1 only that state, but among all.
_HOLD_NO_MORE: dict[Value, frozenset[Value]] = {
    "ddp": frozenset({"ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp"}),
    "zero1": frozenset({"zero1", "fsdp_zero2", "fsdp_zero3"}),
    "fsdp_zero2": frozenset({"fsdp_zero2", "fsdp_zero3"}),
    "fsdp_zero3": frozenset({"fsdp_zero3"}),
    "hsdp": frozenset({"hsdp", "fsdp_zero3"}),
}
# The part of weights, gradients and optimizer state that every rank holds in full; the rest is
# divided among the ranks.
_HELD_BY_ALL: dict[Value, float] = {"zero1": 0.5, "fsdp_zero2": 0.25, "hsdp": 0.25}
# The part of weights, gradients and optimizer state that a GPU holds at a time where the host has
# them: some blocks' weights and gradients. A guess.
_HELD_WHILE_OFFLOADED = 0.1


def is_fsdp(plan: Plan) -> bool:
    """Whether the plan uses FSDP to shard parameters."""
    return plan.get("sharding", "ddp") in FSDP


def offloads_parameters(plan: Plan) -> bool:
    """Whether parameters, gradients and optimizer state are in the memory of the host."""
    return plan.get("parameter_offload", "off") != "off"


def casts_blocks(plan: Plan) -> bool:
    """Whether whole blocks are cast to half precision, as FSDP does, and not each operation."""
    return (is_fsdp(plan) or offloads_parameters(plan)) and is_half(plan)


def holds_no_more(plan: Plan, other: Plan) -> bool:
    """Whether a rank holds no more of model and optimizer under `other` than under `plan`."""
    return other.get("sharding", "ddp") in _HOLD_NO_MORE[plan.get("sharding", "ddp")]


def held_share(plan: Plan, num_ranks: int) -> float:
    """Return the share of weights, gradients and optimizer state that each device holds."""
    sharding = plan.get("sharding", "ddp")
    if offloads_parameters(plan):
        return _HELD_WHILE_OFFLOADED
    if sharding == "ddp":
        return 1.0
    by_all = _HELD_BY_ALL.get(sharding, 0.0)
    return by_all + (1.0 - by_all) / num_ranks


def sharding_speed(value: Value, site: Site) -> float:
    """Return the expected speed of a sharding over ddp's."""
    is_large = site.facts.num_parameters >= _LARGE_MODEL
    return (_SHARDING_SPEED_LARGE if is_large else _SHARDING_SPEED)[value]


def _shardings(site: Site) -> Offer:
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    return tuple(value for value in _shardings_on(site) if not _why_not(value, site.facts))


def _shardings_on(site: Site) -> tuple[str, ...]:
    # Two copies of at least two parts each: with fewer ranks it is ddp or fsdp_zero3.
    grid = site.num_ranks >= 4 and site.num_ranks % 2 == 0
    return _SHARDINGS if grid else _SHARDINGS[:-1]


def _missing_shardings(site: Site) -> str:
    """Return which strategies the workload does not allow, and why."""
    reasons: dict[str, list[str]] = {}
    for value in _shardings_on(site) if site.num_ranks > 1 else ():
        if reason := _why_not(value, site.facts):
            reasons.setdefault(reason, []).append(value)
    return "; ".join(f"without {', '.join(names)}: {why}" for why, names in reasons.items())


def _why_not(sharding: str, facts: WorkloadFacts) -> str | None:
    """Return why a sharding does not train the workload as ddp does, or None."""
    if sharding == "zero1" and facts.rebuild_problem:
        return facts.rebuild_problem  # each rank builds the optimizer anew, for its part
    if sharding == "zero1" and facts.own_step:
        return (
            f"each rank would step with its part of the gradients, and {facts.optimizer_class}'s "
            "own step may look at all of them, as clipping does"
        )
    if sharding in FSDP and facts.varies:
        return "which modules run differs from step to step, and ranks wait for each other in each"
    if sharding in FSDP and facts.shared_across:
        return facts.shared_across
    if sharding in FSDP and facts.sparse_gradients:
        return "it cannot cut the sparse gradients of an embedding"
    return None


def _of_ranks(values: tuple[Value, ...]) -> Callable[[Site], Offer]:
    return lambda site: Out(_ONE_RANK) if site.num_ranks == 1 else values


def _static_graph(site: Site) -> Offer:
    if site.num_ranks > 1 and site.facts.varies:
        return Out("which modules run differs from step to step")
    return _of_ranks(ON_OFF)(site)


def _comm_hooks(site: Site) -> Offer:
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    if site.facts.sparse_gradients:
        return Out("sparse gradients are not sent in half precision")
    # torch's bf16 hook refuses every backend but NCCL.
    return _COMM_HOOKS if site.hardware.device_kind == "cuda" else ("none", "fp16")


def _under(*shardings: str) -> Callable[[Plan], bool]:
    return lambda plan: plan.get("sharding", "ddp") in shardings


def _on_any_device(speeds: Mapping[Value, float]) -> Speed:
    return lambda value, site: both(speeds.get(value, 1.0))


def _sharding_effect(value: Value, site: Site) -> Effect:
    return both(sharding_speed(value, site)) if site.num_ranks > 1 else Effect()


SHARDING = Knob(
    name="sharding",
    doc="what each rank holds: all (ddp), less optimizer state, or a part of everything",
    numerics=Numerics.EXACT,
    values=_shardings,
    known=_SHARDINGS,
    missing=_missing_shardings,
    speed=_sharding_effect,
    doubt=0.06,  # the links between the devices decide
    acts_on=frozenset(),
    saves=None,
    # Which sharding holds less than which is in `holds_no_more`, as they have no single order.
    memory=MemoryUse(saving={}, why_less="each rank holds a part"),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        by_value={
            "ddp": "every rank holds everything, the least is sent",
            "zero1": "each rank keeps a part of the optimizer's state",
            "fsdp_zero2": "parts of everything, parameters whole until the backward pass is "
            "through",
            "fsdp_zero3": "parts of everything, parameters gathered block by block",
            "hsdp": "parts of everything inside groups of ranks, copies across them",
        }
    ),
    conflicts=(
        Conflict(
            knobs=("sharding", "precision"),
            found=lambda plan, facts: (
                facts.has_batch_norm and is_fsdp(plan) and casts_blocks(plan)
            ),
            reason="FSDP computes batch norms in half precision, whose running statistics are "
            "fp32; use sharding=ddp",
        ),
    ),
)
BUCKET_MB = Knob(
    name="bucket_mb",
    doc="MB of gradients that DDP averages at once, while the backward pass goes on",
    numerics=Numerics.EXACT,
    values=_of_ranks(_BUCKETS_MB),
    any_count=True,
    active=_under("ddp", "zero1"),
    speed=_on_any_device({1: 0.8, 5: 0.88, 10: 0.95, 50: 1.01, 100: 1.015, 200: 1.01}),
    acts_on=frozenset({Bound.COMMUNICATION}),
    saves=frozenset({StepPart.COMMUNICATION}),
    memory=NO_MEMORY,
    recompiles_on=ANY_DEVICE,  # DDP splits compiled graphs at its buckets
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        more="fewer and larger messages", less="smaller messages, the first of them sooner"
    ),
)
GRADIENT_AS_BUCKET_VIEW = Knob(
    name="gradient_as_bucket_view",
    doc="gradients live in DDP's buckets, which saves a copy of each",
    numerics=Numerics.EXACT,
    values=_of_ranks(ON_OFF),
    known=ON_OFF,
    active=_under("ddp", "zero1"),
    speed=_on_any_device({True: 1.01}),
    acts_on=frozenset(),
    saves=frozenset({StepPart.COMMUNICATION}),
    # FSDP, under which the knob does not apply, keeps no buckets.
    memory=MemoryUse(saving={True: 1, None: 1}, why_less="gradients are not copied into buckets"),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        change="gradients are not copied into buckets",
        back={False: "gradients apart from the buckets may be as fast"},
    ),
)
STATIC_GRAPH = Knob(
    name="static_graph",
    doc="DDP takes it that every step uses the same parameters in the same way",
    numerics=Numerics.EXACT,
    values=_static_graph,
    known=ON_OFF,
    active=_under("ddp", "zero1"),
    speed=_on_any_device({True: 1.005}),
    acts_on=frozenset(),
    saves=frozenset({StepPart.COMMUNICATION}),
    memory=NO_MEMORY,
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        change="DDP takes it that every step runs like the first",
        back={False: "a graph taken as fixed may save nothing here"},
    ),
    conflicts=(
        Conflict(
            knobs=("static_graph", "accumulation"),
            found=lambda plan, facts: bool(plan.get("static_graph", False)) and accumulates(plan),
            reason="with static_graph DDP averages gradients in every backward pass, which "
            "accumulation puts off",
        ),
    ),
)
COMM_HOOK = Knob(
    name="comm_hook",
    doc="send gradients in half precision",
    numerics=Numerics.PRECISION,
    values=_comm_hooks,
    known=_COMM_HOOKS,
    active=_under("ddp"),
    speed=_on_any_device({"bf16": 1.01, "fp16": 1.01}),
    acts_on=frozenset({Bound.COMMUNICATION}),
    saves=frozenset({StepPart.COMMUNICATION}),
    # A hook makes a copy of each bucket.
    memory=MemoryUse(saving={"none": 1, None: 1}, why_less="no copy of each bucket"),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        change="gradients sent in half the bytes",
        back={"none": "casting gradients may cost more than sending less saves"},
    ),
)

KNOBS = (SHARDING, BUCKET_MB, GRADIENT_AS_BUCKET_VIEW, STATIC_GRAPH, COMM_HOOK)
