"""Who is asked first: the proposers of each part of a search, in their order."""

from autotune.agent.focus import COMMUNICATION, Focus, among_ranks, inside_a_rank
from autotune.agent.guided import (
    STRONG,
    FlipBack,
    Levers,
    Neighbours,
    PatientCompilation,
    Presets,
)
from autotune.agent.ladder import BatchLadder
from autotune.agent.proposal import Proposer
from autotune.agent.sampler import Sampler
from autotune.agent.settings import SearchSettings
from autotune.agent.sharded import Adopted, Shardings
from autotune.search_space.hardware import Hardware


def whole_search(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the order in which every knob is tuned at once."""
    return (
        Presets(),
        Levers(hardware=hardware, at_least=STRONG),
        Shardings(at_least=STRONG),
        BatchLadder(gain=settings.gain),
        FlipBack(hardware=hardware),
        Levers(hardware=hardware, at_least=1.0),
        Shardings(at_least=0.0),
        Neighbours(hardware=hardware),
        PatientCompilation(hardware=hardware),
        Sampler(seed=settings.seed),
    )


def for_scouts(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the order for trials on one device; batch and checkpointing depend on the ranks."""
    return (
        Presets(),
        Levers(hardware=hardware, at_least=STRONG),
        FlipBack(hardware=hardware),
        Levers(hardware=hardware, at_least=1.0),
        Focus(knobs=inside_a_rank, proposer=Neighbours(hardware=hardware)),
        PatientCompilation(hardware=hardware),
        Focus(knobs=inside_a_rank, proposer=Sampler(seed=settings.seed)),
    )


def after_scouts(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the order on all devices of a trial, where scouts tuned what acts inside a rank."""
    communication = Levers(hardware=hardware, at_least=1.0)
    return (
        Adopted(most=settings.adopted),
        Shardings(at_least=STRONG),
        BatchLadder(gain=settings.gain),
        Focus(knobs=COMMUNICATION.__contains__, proposer=communication),
        Shardings(at_least=0.0),
        Focus(knobs=among_ranks, proposer=Neighbours(hardware=hardware)),
        Focus(knobs=among_ranks, proposer=Sampler(seed=settings.seed)),
    )
