"""Optimizer: which implementation of the user's optimizer runs."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    NO_DEVICE,
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
    speed_by_device,
)
from autotune.search_space.knobs.ranks import is_fsdp
from autotune.search_space.plan import Plan
from autotune.search_space.site import Site

# The optimizers whose fused kernel has a rule for torch's `DTensor`, which FSDP's parts are.
_FUSED_ON_PARTS = ("Adam", "AdamW")


def is_fused(plan: Plan) -> bool:
    """Whether the optimizer steps by one kernel for many tensors."""
    return plan.get("optimizer_impl", "default") == "fused"


def _implementations(site: Site) -> Offer:
    """Return the implementations that the user's optimizer has for its parameters."""
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not site.facts.optimizer_impls:
        return Out(f"{site.facts.optimizer_class} takes neither foreach nor fused")
    return ("default", *site.facts.optimizer_impls)


OPTIMIZER_IMPL = Knob(
    name="optimizer_impl",
    doc="implementation of the user's optimizer: one kernel per tensor list, or one in all",
    numerics=Numerics.ROUNDING,
    values=_implementations,
    known=("default", "foreach", "fused"),
    speed=speed_by_device(
        cuda={"foreach": both(1.01), "fused": Effect(host=1.2, device=1.05)},
        cpu={"foreach": both(1.01), "fused": both(1.1)},
    ),
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
                is_fsdp(plan) and is_fused(plan) and facts.optimizer_class not in _FUSED_ON_PARTS
            ),
            reason="torch has no fused kernel of this optimizer for the parts that FSDP makes; "
            "use optimizer_impl=foreach",
        ),
    ),
)

KNOBS = (OPTIMIZER_IMPL,)
