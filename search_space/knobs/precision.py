"""Precision: the number format of matrix products and convolutions."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Reasons,
    speed_by_device,
)
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

_HALF = ("bf16", "fp16", "fp8")  # what is not multiplied in fp8 is computed in bf16
_FP8_CAPABILITY = (8, 9)  # of the first GPUs with products in fp8
# Size of the activations kept for the backward pass under half precision, as a part of that under
# fp32: some stay fp32.
_ACTIVATIONS = 0.65


def is_half(plan: Plan) -> bool:
    """Whether the plan computes in 16 bits, or in fp8 and beside it in 16 bits."""
    return plan.get("precision", "fp32") in _HALF


def scales_gradients(plan: Plan) -> bool:
    """Whether the plan needs a gradient scaler, as fp16 has a smaller range than fp32."""
    return plan.get("precision", "fp32") == "fp16"


# Expected speed-ups on a GPU, from diagnosed steps on a Hopper GPU: products of a T5 ran 10 times
# as fast in bf16. Convolutions of a UNet and a ResNet, which torch computes in tf32 unless it is
# told otherwise, ran 2.5 to 3.2 times as fast in bf16 and channels_last; what else they do 0.9 to
# 2 times. A Llama ran 1.18 times as fast in fp8 as in bf16. A guess is tf32, from a GPT that ran
# 2.8 times as fast in all.
_PRODUCTS = {"tf32": 3.5, "bf16": 10.0, "fp16": 10.0, "fp8": 12.0}
_CONVOLUTIONS = {"tf32": 1.0, "bf16": 2.2, "fp16": 2.2, "fp8": 2.2}
_POINTWISE = {"bf16": 1.2, "fp16": 1.2, "fp8": 1.2}
_HOST = {"bf16": 0.8, "fp16": 0.75, "fp8": 0.75}  # autocast launches a kernel for each cast
_ON_CPU = speed_by_device(cpu={"bf16": Effect(device=1.3)})


def _speed(value: Value, site: Site) -> Effect:
    """Return the expected speed-up, by the part of the model's FLOPs that is in convolutions."""
    name = str(value)
    if site.hardware.device_kind == "cpu" or name not in _PRODUCTS:
        return _ON_CPU(value, site)
    in_convolutions = site.facts.conv_share / _CONVOLUTIONS[name]
    rest = (1.0 - site.facts.conv_share) / _PRODUCTS[name]
    return Effect(
        host=_HOST.get(name, 1.0),
        products=1.0 / (in_convolutions + rest),
        pointwise=_POINTWISE.get(name, 1.0),
    )


def _values(site: Site) -> Offer:
    if site.hardware.device_kind == "cpu":
        return ("fp32", "bf16") if site.facts.bf16 else ("fp32",)
    ampere = site.hardware.capability is not None and site.hardware.capability >= (8, 0)
    values = ("fp32",) + (("tf32",) if ampere else ()) + (("bf16",) if site.facts.bf16 else ())
    # Scaled gradients need the loop's own clipping and saving to know of the scale.
    takes_fp16 = site.facts.fp16 and site.facts.command is None
    values = (*values, "fp16") if takes_fp16 else values
    return values if _why_no_fp8(site) else (*values, "fp8")


def _why_no_fp8(site: Site) -> str | None:
    """Return why no linear layer can multiply in fp8, None where they can."""
    capability = site.hardware.capability
    if capability is None or capability < _FP8_CAPABILITY:
        return "it needs a GPU of capability 8.9"
    if site.facts.command is not None:
        return "it changes the layers of a model, which a script builds by itself"
    return site.facts.fp8_problem


def _missing(site: Site) -> str:
    if site.facts.command is not None and site.facts.fp16:
        return "without fp16: the script's own loop would see scaled gradients"
    return f"without fp8: {site.facts.fp8_problem}" if _lacks_software(site) else ""


def _lacks_software(site: Site) -> bool:
    return site.facts.fp8_problem is not None and _why_no_fp8(site) == site.facts.fp8_problem


PRECISION = Knob(
    name="precision",
    doc="fp32 as torch sets it up, tf32 matmuls, autocast in bf16 or fp16, or linear layers in "
    "fp8 beside bf16",
    numerics=Numerics.PRECISION,
    values=_values,
    known=("fp32", "tf32", "bf16", "fp16", "fp8"),
    guarded=("fp8",),
    missing=_missing,
    speed=_speed,
    acts_on=frozenset({Bound.ARITHMETIC, Bound.MEMORY_BANDWIDTH}),
    saves=None,
    memory=MemoryUse(
        saving=dict.fromkeys(_HALF, 1),
        activations=dict.fromkeys(_HALF, _ACTIVATIONS),
        why_less="activations in fewer bits",
    ),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="matrix products in fewer bits",
        back={"fp32": "casting may cost more than fewer bits save"},
    ),
    conflicts=(
        Conflict(
            knobs=("precision", "compile_mode"),
            found=lambda plan, facts: (
                plan.get("precision", "fp32") == "fp8" and plan.get("compile_mode", "off") == "off"
            ),
            reason="uncompiled, the casts to fp8 take longer than its products save; use "
            "compile_mode=default",
        ),
    ),
)

KNOBS = (PRECISION,)
