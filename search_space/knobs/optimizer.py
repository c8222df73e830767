"""Optimizer: which implementation of the user's optimizer runs."""

from autotune.search_space.bound import Bound
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs.knob import (
    NO_DEVICE,
    NO_EFFECT,
    NO_MEMORY,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    Numerics,
    Offer,
    Out,
    Reasons,
    StepPart,
    both,
)
from autotune.search_space.knobs.ranks import is_fsdp
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

# The optimizers whose fused kernel has a rule for torch's `DTensor`, which FSDP's parts are.
FUSED_ON_PARTS = ("Adam", "AdamW")


def is_fused(plan: Plan, facts: WorkloadFacts) -> bool:
    """Whether the optimizer steps by one kernel for many tensors."""
    impl = plan.get("optimizer_impl", "default")
    return (facts.own_impl if impl == "default" else impl) == "fused"


def _implementations(site: Site) -> Offer:
    """Return the implementations that the user's optimizer has for its parameters."""
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not site.facts.optimizer_impls:
        return Out(f"{site.facts.optimizer_class} takes neither foreach nor fused")
    others = (impl for impl in site.facts.optimizer_impls if impl != site.facts.own_impl)
    return ("default", *others)


def _same_as(value: Value, site: Site) -> Value:
    """Return `default` for what the user's optimizer has already."""
    return "default" if value == site.facts.own_impl else value


def _missing(site: Site) -> str:
    own = site.facts.own_impl
    return f"your optimizer has {own}=True, which is default" if own else ""


_SPEEDS = {
    "cuda": {"foreach": both(1.01), "fused": Effect(host=1.2, device=1.05)},
    "cpu": {"foreach": both(1.01), "fused": both(1.1)},
}


def _speed(value: Value, site: Site) -> Effect:
    """Return the expected speed-up over the implementation that the user's optimizer has."""
    speeds = _SPEEDS[site.hardware.device_kind]
    impl = site.facts.own_impl if value == "default" else value
    own = speeds.get(site.facts.own_impl or "default", NO_EFFECT)
    this = speeds.get(str(impl or "default"), NO_EFFECT)
    return Effect(host=this.host / own.host, device=this.device / own.device)


OPTIMIZER_IMPL = Knob(
    name="optimizer_impl",
    doc="implementation of the user's optimizer: one kernel per tensor list, or one in all",
    numerics=Numerics.ROUNDING,
    values=_implementations,
    known=("default", "foreach", "fused"),
    same_as=_same_as,
    missing=_missing,
    speed=_speed,
    acts_on=frozenset({Bound.LAUNCHES, Bound.MEMORY_BANDWIDTH}),
    saves=frozenset({StepPart.OPTIMIZER, StepPart.IDLE}),
    memory=NO_MEMORY,
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="fewer kernels in the optimizer step",
        back={"default": "its own implementation may be faster here"},
    ),
    conflicts=(
        Conflict(
            knobs=("optimizer_impl", "sharding"),
            found=lambda plan, facts: (
                is_fsdp(plan)
                and is_fused(plan, facts)
                and facts.optimizer_class not in FUSED_ON_PARTS
            ),
            reason="torch has no fused kernel of this optimizer for the parts that FSDP makes; "
            "use optimizer_impl=foreach",
        ),
    ),
)

KNOBS = (OPTIMIZER_IMPL,)
