"""Layout: how convolutions find their tensors and their algorithms."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    NO_DEVICE,
    ON_OFF,
    UNKNOWN_MEMORY,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    Numerics,
    Offer,
    Out,
    Reasons,
    cuda_only,
    speed_by_device,
)
from autotune.search_space.knobs.ranks import is_fsdp
from autotune.search_space.plan import Value
from autotune.search_space.site import Site


def _needs_convolution(site: Site, values: tuple[Value, ...]) -> Offer:
    return values if site.facts.has_conv2d else Out("the model has no 2-D convolution")


def _cudnn_benchmark(site: Site) -> Offer:
    values = cuda_only(site, ON_OFF)
    return values if isinstance(values, Out) else _needs_convolution(site, values)


MEMORY_FORMAT = Knob(
    name="memory_format",
    doc="layout of 4-D tensors; channels_last feeds tensor cores in convolutions",
    numerics=Numerics.ROUNDING,
    values=lambda site: _needs_convolution(site, ("contiguous", "channels_last")),
    known=("contiguous", "channels_last"),
    # 1.63 times in eager bf16, nothing once compiled: a ResNet-50 on a Hopper GPU. Less for what a
    # UNet does between its convolutions.
    speed=speed_by_device(
        cuda={"channels_last": Effect(products=1.4, pointwise=1.05)},
        cpu={"channels_last": Effect(device=1.2)},
    ),
    acts_on=frozenset({Bound.MEMORY_BANDWIDTH}),
    saves=None,
    memory=UNKNOWN_MEMORY,
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="the layout that convolutions run fastest in",
        back={"contiguous": "some operator may lack the other layout"},
    ),
    conflicts=(
        # From the sources of `fully_shard`.
        Conflict(
            knobs=("memory_format", "sharding"),
            found=lambda plan, facts: (
                is_fsdp(plan) and plan.get("memory_format", "contiguous") == "channels_last"
            ),
            reason="FSDP cuts parameters along their first dimension in memory, and channels_last "
            "orders them in another way",
        ),
    ),
)
CUDNN_BENCHMARK = Knob(
    name="cudnn_benchmark",
    doc="let cuDNN time its convolution algorithms at each new shape",
    numerics=Numerics.ROUNDING,
    values=_cudnn_benchmark,
    known=ON_OFF,
    speed=speed_by_device(cuda={True: Effect(device=1.06)}),
    acts_on=frozenset(),
    saves=None,
    memory=UNKNOWN_MEMORY,  # the algorithm that wins may need a larger workspace
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="convolution algorithms chosen by timing them",
        back={False: "cuDNN's own choice may be as fast"},
    ),
    lengthens_start=True,
)

KNOBS = (MEMORY_FORMAT, CUDNN_BENCHMARK)
