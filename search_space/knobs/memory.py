"""Memory: what is kept for the backward pass."""

from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Reasons,
    both,
    needs_blocks,
    speed_by_device,
)
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

_VALUES = ("none", "selective", "every-4", "every-2", "full")
_COARSE = {"every-4": 4, "every-2": 2}  # blocks that a checkpoint spans
# Checkpointing every block of a GPT cost 11 % of its speed; the rest is in proportion.
_SPEED: dict[Value, Effect] = {
    "selective": both(0.95),
    "every-4": both(0.97),
    "every-2": both(0.94),
    "full": both(0.89),
}


def checkpoints(plan: Plan) -> bool:
    """Whether the plan recomputes activations."""
    return plan.get("activation_checkpointing", "none") != "none"


def _checkpointing(site: Site) -> Offer:
    fitting = tuple(v for v in _VALUES if _COARSE.get(v, 0) < max(site.facts.num_blocks, 1))
    return needs_blocks(site, fitting)


ACTIVATION_CHECKPOINTING = Knob(
    name="activation_checkpointing",
    doc="recompute activations in the backward pass: less memory, more arithmetic",
    numerics=Numerics.EXACT,
    values=_checkpointing,
    known=_VALUES,
    speed=speed_by_device(cuda=_SPEED, cpu=_SPEED),
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(
        saving={"selective": 1, "every-4": 2, "every-2": 3, "full": 4},
        activations={"selective": 0.8, "every-4": 0.85, "every-2": 0.65, "full": 0.35},
        why_less="activations are computed again instead of kept",
        makes_room=True,
    ),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ALL_RANKS,
    reasons=Reasons(change="room for the batch", back={"none": "nothing is computed twice"}),
)

KNOBS = (ACTIVATION_CHECKPOINTING,)
