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
from autotune.search_space.plan import Value
from autotune.search_space.site import Site

_WORKER_PRICE = 0.99  # factor on the step's speed for each worker, which takes cores and memory
# Share of its time below which a loader that keeps a core busy counts as waiting for storage or a
# network; and the number of workers for each core that it may then have.
_WAITS, _WORKERS_FOR_A_WAITING_CORE = 0.25, 4


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

KNOBS = (WORKERS, PREFETCH, PIN_MEMORY)
