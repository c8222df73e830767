"""Batch: samples of a micro-batch on each device, and micro-batches in an optimizer step."""

from autotune.errors import PlanError
from autotune.search_space.bound import Bound
from autotune.search_space.knobs.knob import (
    NO_DEVICE,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Out,
    Reasons,
    no_speed,
)
from autotune.search_space.plan import Plan
from autotune.search_space.site import Site, on_ranks

FOLLOWS = "accumulation"
"""The knob that is not chosen: it follows from the global batch, the batch and the ranks."""
FOLLOWS_BATCH = frozenset({"batch_size", FOLLOWS})
"""The knobs that set the samples of a micro-batch and the micro-batches of a step."""

_LARGEST = 64  # largest batch, as a multiple of the user's own


def accumulates(plan: Plan) -> bool:
    """Whether an optimizer step takes several micro-batches."""
    return int(plan.get(FOLLOWS, 1)) > 1


def batch_does_not_divide(name: str, size: int, total: int, num_ranks: int = 1) -> str:
    """Return the message for a batch that does not divide GLOBAL_BATCH_SIZE, with near ones."""
    near = [d for d in range(1, total + 1) if total % (d * num_ranks) == 0]
    below = [d for d in near if d < size][-1:]
    above = [d for d in near if d > size][:1]
    use = " or ".join(str(d) for d in below + above) or f"a number of ranks that divides {total}"
    return (
        f"{name}={size}{on_ranks(num_ranks)} does not divide GLOBAL_BATCH_SIZE={total}; use {use}"
    )


def _sizes(site: Site) -> Offer:
    """Return the user's own batch, its doublings while samples last, and two smaller ones."""
    own = site.own_batch_size
    if site.facts.fixed_batches:
        return (own,)
    if site.facts.global_batch_size is not None:
        return (own, *(size for size in site.fitting_batches if size != own))
    largest = own * _LARGEST
    if site.facts.dataset_len is not None:
        largest = min(largest, site.facts.dataset_len // site.num_ranks)
    ladder = [own]
    while ladder[-1] * 2 <= largest:
        ladder.append(ladder[-1] * 2)
    smaller = [own // 2**k for k in (1, 2) if own % 2**k == 0]
    return (*ladder, *(size for size in smaller if size >= 1))


def _check_size(size: int, site: Site) -> None:
    facts, ranks = site.facts, site.num_ranks
    if facts.fixed_batches and size != site.own_batch_size:
        raise PlanError(
            f"batch_size={size} is not what the loader gives: it makes its own batches, "
            f"counted as BATCH_SIZE={site.own_batch_size}; pass **kwargs on to DataLoader"
        )
    if facts.global_batch_size is not None and facts.global_batch_size % (size * ranks):
        raise PlanError(batch_does_not_divide("batch_size", size, facts.global_batch_size, ranks))
    if facts.dataset_len is not None and size * ranks > facts.dataset_len:
        raise PlanError(
            f"batch_size={size}{on_ranks(ranks)} is more than the {facts.dataset_len} samples of "
            f"the dataset; use at most {facts.dataset_len // ranks}"
        )


def _accumulations(site: Site) -> Offer:
    """Return the accumulation that keeps the global batch, for each batch size."""
    if site.facts.global_batch_size is None and site.facts.command is not None:
        return Out("it varies where arguments are known for it and for batch_size; see --bind")
    if site.facts.global_batch_size is None:
        return Out("GLOBAL_BATCH_SIZE is not set, so each step is one batch")
    sizes = _sizes(site)
    assert isinstance(sizes, tuple)
    return tuple(site.facts.global_batch_size // site.num_ranks // int(size) for size in sizes)


BATCH_SIZE = Knob(
    name="batch_size",
    doc="samples per device and micro-step",
    numerics=Numerics.TRAINING,
    allowed_from=Numerics.PRECISION,  # the default lets it vary; the conclusion names the change
    values=_sizes,
    any_count=True,
    check_count=_check_size,
    # The forecast computes what a batch is worth from how the step divides.
    speed=no_speed,
    acts_on=frozenset({Bound.LAUNCHES}),
    saves=None,
    memory=MemoryUse(saving=None, why_less="fewer samples at once", less_is_less=True),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ALL_RANKS,
    reasons=Reasons(
        more="the batch that fills the device",
        less="a smaller batch may fill the device as well",
        less_goes_back=True,
    ),
)
ACCUMULATION = Knob(
    name=FOLLOWS,
    doc="micro-steps per optimizer step; follows from GLOBAL_BATCH_SIZE and batch_size",
    numerics=Numerics.EXACT,
    values=_accumulations,
    speed=no_speed,
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(saving=None, why_less="fewer samples at once", less_is_less=False),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.RANKS_ONLY,
    reasons=Reasons(
        change="as many micro-batches in an optimizer step as GLOBAL_BATCH_SIZE needs"
    ),
)

KNOBS = (BATCH_SIZE, ACCUMULATION)
