"""Precision: the number format of matrix products and convolutions."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Reasons,
    speed_by_device,
)
from autotune.search_space.plan import Plan
from autotune.search_space.site import Site

_HALF = ("bf16", "fp16")
# Size of the activations kept for the backward pass under half precision, as a part of that under
# fp32: some stay fp32.
_ACTIVATIONS = 0.65


def is_half(plan: Plan) -> bool:
    """Whether the plan computes in 16 bits."""
    return plan.get("precision", "fp32") in _HALF


def scales_gradients(plan: Plan) -> bool:
    """Whether the plan needs a gradient scaler, as fp16 has a smaller range than fp32."""
    return plan.get("precision", "fp32") == "fp16"


def _values(site: Site) -> Offer:
    if site.hardware.device_kind == "cpu":
        return ("fp32", "bf16") if site.facts.bf16 else ("fp32",)
    ampere = site.hardware.capability is not None and site.hardware.capability >= (8, 0)
    values = ("fp32",) + (("tf32",) if ampere else ()) + (("bf16",) if site.facts.bf16 else ())
    # Scaled gradients need the loop's own clipping and saving to know of the scale.
    takes_fp16 = site.facts.fp16 and site.facts.command is None
    return (*values, "fp16") if takes_fp16 else values


def _missing(site: Site) -> str:
    return (
        "without fp16: the script's own loop would see scaled gradients"
        if (site.facts.command is not None and site.facts.fp16)
        else ""
    )


PRECISION = Knob(
    name="precision",
    doc="fp32 as torch sets it up, tf32 matmuls, or autocast in bf16 or fp16",
    numerics=Numerics.PRECISION,
    values=_values,
    known=("fp32", "tf32", "bf16", "fp16"),
    missing=_missing,
    # Measured on a GPT and a ResNet on a Hopper GPU. Autocast launches a kernel for each cast.
    speed=speed_by_device(
        cuda={
            "tf32": Effect(device=2.5),
            "bf16": Effect(host=0.8, device=4.0),
            "fp16": Effect(host=0.75, device=3.9),
        },
        cpu={"bf16": Effect(device=1.3)},
    ),
    acts_on=frozenset({Bound.ARITHMETIC, Bound.MEMORY_BANDWIDTH}),
    saves=None,
    memory=MemoryUse(
        saving={"fp16": 1, "bf16": 1},
        activations=dict.fromkeys(_HALF, _ACTIVATIONS),
        why_less="activations in fewer bits",
    ),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="matrix products in fewer bits",
        back={"fp32": "casting may cost more than fewer bits save"},
    ),
)

KNOBS = (PRECISION,)
