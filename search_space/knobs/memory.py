"""Memory: what is kept for the backward pass, and how torch asks for the memory of a GPU."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    NO_DEVICE,
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
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

_VALUES = ("none", "selective", "every-4", "every-2", "full")
_ALLOCATORS = ("default", "expandable")
_COARSE = {"every-4": 4, "every-2": 2}  # one of so many blocks is checkpointed
# Checkpointing every block cost a GPT 11 % of its speed and a Llama 19 to 20 % (LOG, 2026-11-23).
# The rest is in proportion.
_SPEED: dict[Value, Effect] = {
    "selective": both(0.95),
    "every-4": both(0.96),
    "every-2": both(0.92),
    "full": both(0.85),
}


def checkpoints(plan: Plan) -> bool:
    """Whether the plan recomputes activations."""
    return plan.get("activation_checkpointing", "none") != "none"


def _checkpointing(site: Site) -> Offer:
    fitting = tuple(v for v in _VALUES if _COARSE.get(v, 0) < max(site.facts.num_blocks, 1))
    return needs_blocks(site, fitting)


def _allocators(site: Site) -> Offer:
    offer = cuda_only(site, _ALLOCATORS)
    if isinstance(offer, Out) or site.facts.uneven_batches:
        return offer
    return Out("batches have one shape, so that each step finds the memory of the one before")


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
ALLOCATOR = Knob(
    name="allocator",
    doc="how torch's allocator asks for memory of the GPU: in pieces, or in segments that grow",
    numerics=Numerics.EXACT,
    values=_allocators,
    known=_ALLOCATORS,
    # With batches of uneven length on an H200: 1.05 times for a Conformer, 1.5 for a BERT whose
    # steps were still asking for memory while they were timed.
    speed=speed_by_device(cuda={"expandable": both(1.03)}),
    acts_on=frozenset({Bound.CAPACITY}),
    saves=None,
    memory=MemoryUse(
        saving={"expandable": 1},
        why_less="segments grow in place, so that less memory lies unused between tensors",
    ),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="memory between tensors is not lost",
        back={"default": "torch's own pieces may leave nothing unused here"},
    ),
)

KNOBS = (ACTIVATION_CHECKPOINTING, ALLOCATOR)
