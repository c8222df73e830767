"""The proposers of each part of a search, in the order in which they are asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.focus import Focus, Knobs, needs_one_device, not_scouted
from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.earlier import BestOfEarlierRuns, EarlierBest
from autotune.agent.proposers.promising import Promising
from autotune.agent.proposers.sampler import Sampler
from autotune.agent.proposers.sharded import BestOfScouts, Shardings
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware

# Expected speed-up from which a sharding is tried before other knobs.
STRONG_SPEEDUP = 1.04
# Probability of a gain from which a plan is tried before shardings, which then start from it.
SURE_GAIN = 0.97
# Probability of a gain from which a plan is tried before the shardings and plans that are left.
LIKELY_GAIN = 0.4


def unsharded_search(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[EarlierBest]
) -> tuple[Proposer, ...]:
    """Return the proposers that tune all knobs together when sharding does not vary."""
    return (
        BestOfEarlierRuns(found=earlier),
        _promising(settings, hardware, LIKELY_GAIN),
        _promising(settings, hardware, settings.chance),
        _sampled(settings, hardware),
    )


def sharded_search(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[EarlierBest]
) -> tuple[Proposer, ...]:
    """Return the proposers that tune all knobs together, sharding among them."""
    return (
        BestOfEarlierRuns(found=earlier),
        _promising(settings, hardware, SURE_GAIN),
        _shardings(settings, hardware, STRONG_SPEEDUP),
        _promising(settings, hardware, LIKELY_GAIN),
        _shardings(settings, hardware, 0.0),
        _promising(settings, hardware, settings.chance),
        _sampled(settings, hardware),
    )


def for_scouts(settings: SearchSettings, hardware: Hardware) -> tuple[Proposer, ...]:
    """Return the proposers for trials on one device.

    They leave out batch and checkpointing, whose best values depend on the number of ranks.
    """
    return (
        Focus(knobs=_one_device, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=_one_device, proposer=_sampled(settings, hardware)),
    )


def after_scouts(
    settings: SearchSettings, hardware: Hardware, earlier: Sequence[EarlierBest]
) -> tuple[Proposer, ...]:
    """Return the proposers for trials on several devices that follow trials on one device."""
    return (
        BestOfEarlierRuns(found=earlier),
        BestOfScouts(max_plans=settings.adopted),
        _shardings(settings, hardware, STRONG_SPEEDUP),
        Focus(knobs=not_scouted, proposer=_promising(settings, hardware, LIKELY_GAIN)),
        _shardings(settings, hardware, 0.0),
        Focus(knobs=not_scouted, proposer=_promising(settings, hardware, settings.chance)),
        Focus(knobs=not_scouted, proposer=_sampled(settings, hardware)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worthwhile:
    """The proposals of another proposer that the forecast gives a chance to gain."""

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
