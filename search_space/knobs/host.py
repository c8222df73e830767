"""Host: the CPU threads of a training process, and what it does with freed memory."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    NO_DEVICE,
    NO_EFFECT,
    NO_MEMORY,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Out,
    Reasons,
    StepPart,
    both,
    speed_by_device,
)
from autotune.search_space.plan import Value
from autotune.search_space.site import Site

_FEWER_ON_GPU = Effect(host=1.05)
# Guesses, where no diagnosis has looked at it: fewer threads wait less for each other in short
# operators, and share long ones less well (a U-Net had 0.63 of its speed with one of two threads).
_HOST_WITH_FEWER, _SCALING = 1.1, 0.7


def _threads(site: Site) -> Offer:
    """Return counts up to the cores of a rank."""
    if site.hardware.device_kind == "cuda":
        # Threads that spin while they wait for the next CPU operator take the cores from the
        # thread that launches kernels; one thread never spins.
        return (site.cores_per_rank, 1) if site.cores_per_rank > 1 else (1,)
    counts, count = [], 1
    while count < site.cores_per_rank:
        counts.append(count)
        count *= 2
    if not counts and max(site.hardware.num_devices, site.num_ranks) == 1:
        return Out("only one core is available")
    # Those who share the machine are told so: by itself torch takes all the cores in each.
    return (site.cores_per_rank, *counts)


def _malloc(site: Site) -> Offer:
    if site.hardware.device_kind == "cuda":
        return Out("tensors are in the memory of the GPU, which torch keeps for itself")
    return ("system", "keep")


def _speed(value: Value, site: Site) -> Effect:
    part = int(value) / site.cores_per_rank
    if part >= 1.0:
        return NO_EFFECT
    if site.hardware.device_kind == "cuda":
        return _FEWER_ON_GPU
    return Effect(host=_HOST_WITH_FEWER, device=part**_SCALING)


THREADS = Knob(
    name="threads",
    doc="CPU threads inside one operator; on a GPU machine those of the loader and the host",
    numerics=Numerics.EXACT,
    values=_threads,
    any_count=True,
    speed=_speed,
    acts_on=frozenset[Bound](),
    saves=frozenset({StepPart.DATA, StepPart.IDLE}),
    memory=NO_MEMORY,
    recompiles_on=frozenset({"cpu"}),  # generated code for a CPU names its number of threads
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        more="more threads share the work of an operator",
        less="fewer threads wait less for each other",
    ),
    feeds_device=True,
)

MALLOC = Knob(
    name="malloc",
    doc="freed host memory goes back to the system, or is kept for the tensors of the next step",
    numerics=Numerics.EXACT,
    values=_malloc,
    known=("system", "keep"),
    # Where pages are dear, as in virtual machines, a step spends much of its time on fresh ones.
    speed=speed_by_device(cpu={"keep": both(1.05)}),
    acts_on=frozenset({Bound.MEMORY_BANDWIDTH}),
    saves=None,
    memory=MemoryUse(saving={"system": 1, None: 1}),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="tensors find memory that has pages already",
        back={"system": "kept memory may be of no use here"},
    ),
)

KNOBS = (THREADS, MALLOC)
