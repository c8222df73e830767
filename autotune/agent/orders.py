"""Who is asked first: the proposers of each part of a search, in their order."""

from collections.abc import Sequence

from autotune.agent.earlier import Found, Remembered
from autotune.agent.focus import Focus, among_ranks, inside_a_rank
from autotune.agent.promising import Promising
from autotune.agent.proposal import Proposer
from autotune.agent.sampler import Sampler
from autotune.agent.settings import SearchSettings
from autotune.agent.sharded import Adopted, Shardings
from autotune.search_space.hardware import Hardware

STRONG = 1.04  # expected gain from which a sharding is worth a trial before other knobs
SURE = 0.97  # chance of a gain from which a plan is tried before shardings, to shard it then
LIKELY = 0.4  # chance of a gain from which a plan is worth a trial before unlikely shardings


def whole_search(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[Found]
) -> tuple[Proposer, ...]:
    """Return the order in which every knob is tuned at once."""
    return (
        Remembered(found=earlier),
        _promising(settings, hardware, SURE),
        Shardings(at_least=STRONG),
        _promising(settings, hardware, LIKELY),
        Shardings(at_least=0.0),
        _promising(settings, hardware, settings.chance),
        Sampler(seed=settings.seed),
    )


def for_scouts(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the order for trials on one device; batch and checkpointing depend on the ranks."""
    return (
        Focus(knobs=inside_a_rank, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=inside_a_rank, proposer=Sampler(seed=settings.seed)),
    )


def after_scouts(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[Found]
) -> tuple[Proposer, ...]:
    """Return the order on all devices of a trial, where scouts tuned what acts inside a rank."""
    return (
        Remembered(found=earlier),
        Adopted(most=settings.adopted),
        Shardings(at_least=STRONG),
        Focus(knobs=among_ranks, proposer=_promising(settings, hardware, LIKELY)),
        Shardings(at_least=0.0),
        Focus(knobs=among_ranks, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=among_ranks, proposer=Sampler(seed=settings.seed)),
    )


def _promising(settings: SearchSettings, hardware: Hardware, chance: float) -> Promising:
    return Promising(hardware=hardware, gain=settings.gain, chance=chance)
