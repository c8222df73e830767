"""Attention: the kernel that torch's scaled_dot_product_attention takes first."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    UNKNOWN_MEMORY,
    Knob,
    MeasuredOn,
    Numerics,
    Offer,
    Out,
    Reasons,
    cuda_only,
    speed_by_device,
)
from autotune.search_space.knobs.precision import is_half
from autotune.search_space.site import Site

_VALUES = ("default", "flash", "cudnn", "efficient")
_LEAST_CAPABILITY = (8, 0)  # of flash attention and of cuDNN's, which need Ampere
_WORTH_CHOOSING = 0.01  # share of the model's FLOPs in attention


def _kernels(site: Site) -> Offer:
    offer, share = cuda_only(site, _VALUES), site.facts.attention_share
    if isinstance(offer, Out):
        return offer
    if share is None:
        return Out("the model's arithmetic could not be counted")
    if not share:
        return Out("the model does not call torch's scaled_dot_product_attention")
    if share < _WORTH_CHOOSING:
        return Out("less than 1 % of the model's arithmetic is in attention")
    if site.hardware.capability is None or site.hardware.capability < _LEAST_CAPABILITY:
        return Out("this GPU has one kernel for attention: the others need capability 8.0")
    return offer


SDPA_KERNEL = Knob(
    name="sdpa_kernel",
    doc="the kernel that scaled_dot_product_attention tries first, before the others that fit",
    numerics=Numerics.ROUNDING,
    values=_kernels,
    known=_VALUES,
    guarded=_VALUES[1:],
    # In 32 bits only one of the kernels runs.
    active=is_half,
    # Which of them is fastest depends on the length of the sequence and the size of a head; torch
    # itself takes cuDNN's first on Hopper where cuDNN is newer than 9.15, else flash attention.
    speed=speed_by_device(),
    doubt=0.05,
    acts_on=frozenset({Bound.ARITHMETIC}),
    saves=None,
    memory=UNKNOWN_MEMORY,  # each has a workspace of its own
    recompiles_on=frozenset({"cuda"}),
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        by_value={
            "flash": "FlashAttention may suit these heads and lengths better",
            "cudnn": "cuDNN's attention may suit these heads and lengths better",
            "efficient": "memory-efficient attention may suit these heads and lengths better",
        },
        back={"default": "torch's own choice of an attention kernel may be as fast"},
        allow="your step spends its time on arithmetic, attention among it: `--allow "
        "flash,cudnn,efficient` also tries each attention kernel",
    ),
)

KNOBS = (SDPA_KERNEL,)
