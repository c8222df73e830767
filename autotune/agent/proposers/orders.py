"""Who is asked first: the proposers of each part of a search, in their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.focus import Focus, Knobs, needs_one_device, not_scouted
from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.earlier import Found, Remembered
from autotune.agent.proposers.promising import Promising
from autotune.agent.proposers.sampler import Sampler
from autotune.agent.proposers.sharded import Adopted, Shardings
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware

STRONG = 1.04  # expected gain from which a sharding is worth a trial before other knobs
SURE = 0.97  # chance of a gain from which a plan is tried before shardings, to shard it then
LIKELY = 0.4  # chance of a gain from which a plan is worth a trial before unlikely ones


def unsharded_search(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[Found]
) -> tuple[Proposer, ...]:
    """Return the order in which every knob is tuned at once, where no sharding varies."""
    return (
        Remembered(found=earlier),
        _promising(settings, hardware, LIKELY),
        _promising(settings, hardware, settings.chance),
        _sampled(settings, hardware),
    )


def sharded_search(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[Found]
) -> tuple[Proposer, ...]:
    """Return the order in which every knob is tuned at once, shardings among them."""
    return (
        Remembered(found=earlier),
        _promising(settings, hardware, SURE),
        _shardings(settings, hardware, STRONG),
        _promising(settings, hardware, LIKELY),
        _shardings(settings, hardware, 0.0),
        _promising(settings, hardware, settings.chance),
        _sampled(settings, hardware),
    )


def for_scouts(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the order for trials on one device; batch and checkpointing depend on the ranks."""
    return (
        Focus(knobs=_one_device, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=_one_device, proposer=_sampled(settings, hardware)),
    )


def after_scouts(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[Found]
) -> tuple[Proposer, ...]:
    """Return the order on all devices of a trial, where scouts tuned what acts inside a rank."""
    return (
        Remembered(found=earlier),
        Adopted(most=settings.adopted),
        _shardings(settings, hardware, STRONG),
        Focus(knobs=not_scouted, proposer=_promising(settings, hardware, LIKELY)),
        _shardings(settings, hardware, 0.0),
        Focus(knobs=not_scouted, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=not_scouted, proposer=_sampled(settings, hardware)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worthwhile:
    """What another proposer has, as far as the forecast gives it a chance."""

    proposer: Proposer
    promising: Promising

    def candidates(self, history: History) -> Iterator[Proposal]:
        return self.promising.worthwhile(self.proposer.candidates(history), history)


def _sampled(settings: SearchSettings, hardware: Hardware) -> Proposer:
    promising = _promising(settings, hardware, settings.slight_chance)
    return _Worthwhile(proposer=Sampler(seed=settings.seed), promising=promising)


def _shardings(settings: SearchSettings, hardware: Hardware, at_least: float) -> Proposer:
    promising = _promising(settings, hardware, settings.chance)
    return _Worthwhile(proposer=Shardings(at_least=at_least), promising=promising)


def _one_device(history: History) -> Knobs:
    return needs_one_device


def _promising(settings: SearchSettings, hardware: Hardware, chance: float) -> Promising:
    return Promising(hardware=hardware, gain=settings.gain, chance=chance)
