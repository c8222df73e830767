"""Loader: how batches are loaded and brought to the device."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    NO_DEVICE,
    NO_EFFECT,
    NO_MEMORY,
    ON_OFF,
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
    cuda_only,
    no_speed,
    speed_by_device,
)
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site

_WORKER_PRICE = 0.99  # factor on the step's speed for each worker, which takes cores and memory
# Share of its time below which a loader that keeps a core busy counts as waiting for storage or a
# network; and the number of workers for each core that it may then have.
_WAITS, _WORKERS_FOR_A_WAITING_CORE = 0.25, 4

_COPIES = ("off", "stream")
# Least factor by which batches shrink that makes their order worth a trial; less is within noise.
_LEAST_LENGTH_GAIN = 1.03


def groups_by_length(plan: Plan) -> bool:
    """Whether the samples of a batch have similar lengths."""
    return bool(plan.get("length_bucketing", False))


def _workers(site: Site) -> Offer:
    """Return counts up to the cores of a rank, and more for a loader that mostly waits."""
    if site.facts.repeats_in_workers:
        return Out(
            "each worker would read the whole of the iterable dataset, so that samples repeat; "
            "let it share them out by torch.utils.data.get_worker_info()"
        )
    if site.facts.open_file is not None:
        return Out(
            f"the dataset holds an open file ({site.facts.open_file}), and worker processes would "
            "share its position and read each other's samples; open it when __getitem__ first runs"
        )
    for_each_core = _WORKERS_FOR_A_WAITING_CORE if site.facts.loader_busy_share < _WAITS else 1
    most = site.cores_per_rank * for_each_core
    counts = [0, 1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    if counts[-1] < most:
        counts.append(most)
    return tuple(counts)


def _queue_lengths(site: Site) -> Offer:
    loading = _workers(site)
    return loading if isinstance(loading, Out) else (2, 4, 8)


def _workers_speed(value: Value, site: Site) -> Effect:
    """Return a small loss for each worker; the forecast of loading adds what workers gain."""
    return both(_WORKER_PRICE ** int(value)) if value else NO_EFFECT


def _copies(site: Site) -> Offer:
    if site.facts.command is not None:
        return Out("the script copies its batches by itself")
    return cuda_only(site, _COPIES)


def _bucketing(site: Site) -> Offer:
    facts = site.facts
    if facts.command is not None:
        return Out("the order of samples is the script's own; Trainers have a setting for it")
    if not facts.uneven_batches:
        return Out("batches do not differ in shape")
    if facts.length_problem is not None:
        return Out(facts.length_problem)
    if facts.length_gain is None or facts.length_gain < _LEAST_LENGTH_GAIN:
        return Out("batches of samples of similar length would hold hardly less padding")
    return ON_OFF


def _bucketing_speed(value: Value, site: Site) -> Effect:
    """Return how much less a batch holds; the host of a GPU launches as many operations."""
    gain = site.facts.length_gain or 1.0
    if not value:
        return NO_EFFECT
    return Effect(device=gain) if site.hardware.device_kind == "cuda" else both(gain)


WORKERS = Knob(
    name="workers",
    doc="DataLoader worker processes; 0 loads in the training process",
    numerics=Numerics.EXACT,
    values=_workers,
    any_count=True,
    least=0,
    speed=_workers_speed,
    acts_on=frozenset({Bound.DATA}),
    saves=frozenset({StepPart.DATA, StepPart.IDLE}),
    memory=NO_MEMORY,
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        more="processes that load beside the step",
        less="fewer processes take cores and memory from the step",
        back={0: "workers may cost more than they load"},
    ),
    feeds_device=True,
    needs_data_wait=True,
)
PREFETCH = Knob(
    name="prefetch",
    doc="batches each worker prepares ahead",
    numerics=Numerics.EXACT,
    values=_queue_lengths,
    known=(2, 4, 8),
    any_count=True,
    active=lambda plan: int(plan.get("workers", 0)) > 0,
    speed=no_speed,
    acts_on=frozenset({Bound.DATA}),
    saves=frozenset({StepPart.DATA, StepPart.IDLE}),
    memory=NO_MEMORY,
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(more="batches loaded ahead", less="a shorter queue may be enough"),
    feeds_device=True,
    needs_data_wait=True,
)
PIN_MEMORY = Knob(
    name="pin_memory",
    doc="page-locked batches with non-blocking copies",
    numerics=Numerics.EXACT,
    values=lambda site: cuda_only(site, ON_OFF),
    known=ON_OFF,
    # Copies that overlap: as much as copying takes, which a diagnosis tells.
    speed=speed_by_device(cuda={True: both(1.05)}),
    hides=StepPart.COPY,
    acts_on=frozenset(),
    saves=frozenset({StepPart.COPY, StepPart.IDLE}),
    memory=NO_MEMORY,
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="copies to the device that overlap with the step",
        back={False: "pinning batches may cost more than it saves"},
    ),
    feeds_device=True,
)
COPY_AHEAD = Knob(
    name="copy_ahead",
    doc="copy the next batch on a CUDA stream of its own while the step computes",
    numerics=Numerics.EXACT,
    values=_copies,
    known=_COPIES,
    # Within noise on an H200, and one more batch is on the device (LOG, 2026-11-23).
    guarded=("stream",),
    active=lambda plan: bool(plan.get("pin_memory", False)),
    speed=speed_by_device(cuda={"stream": both(1.02)}),
    acts_on=frozenset({Bound.DATA}),
    saves=frozenset({StepPart.COPY, StepPart.IDLE}),
    memory=MemoryUse(saving={"off": 1, None: 1}),  # two batches are on the device at a time
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="the copy of a batch need not wait for the step before it",
        back={"off": "a second stream may cost more than the copies that it hides"},
    ),
    feeds_device=True,
)
LENGTH_BUCKETING = Knob(
    name="length_bucketing",
    doc="put samples of similar length into a batch, so that less of it is padding",
    numerics=Numerics.TRAINING,
    values=_bucketing,
    known=ON_OFF,
    speed=_bucketing_speed,
    acts_on=frozenset({Bound.ARITHMETIC, Bound.MEMORY_BANDWIDTH}),
    saves=None,
    memory=NO_MEMORY,  # the longest batch is as long
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="short samples are not padded to the length of long ones",
        back={False: "batches of any samples, as your own loader has them"},
        allow="your batches are padded to samples of uneven length: `--allow length_bucketing` "
        "also tries batches of samples of similar length, which changes which ones are together",
    ),
)

KNOBS = (WORKERS, PREFETCH, PIN_MEMORY, COPY_AHEAD, LENGTH_BUCKETING)
