"""The parts of a search: scouts on one device per trial, then all devices of a trial.

A run whose trials have one device is one part. With several, scouts show what one device can
show, side by side and so many times as many a minute; the search among the ranks begins with what
they found. Only plans that were measured on all devices of a trial can win.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.agent.focus import Knobs, every_knob, needs_one_device, not_scouted
from autotune.agent.forecast.durations import expected_s
from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.baseline import why_no_baseline
from autotune.agent.proposers.earlier import EarlierBest
from autotune.agent.proposers.gate import TimeLeft
from autotune.agent.proposers.orders import (
    after_scouts,
    for_scouts,
    sharded_search,
    unsharded_search,
)
from autotune.agent.proposers.strategy import Strategy
from autotune.agent.settings import SearchSettings
from autotune.agent.stopping import gains_nothing, share_used_up, trials_used_up
from autotune.search_space.hardware import Hardware
from autotune.search_space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the search: a space, what to try in it, and what ends it.

    Attributes:
        name: in words.
        share: of the time that it finds and of the search's trials, after which it is over.
        why_over: why no further trial is worth running, or None.
    """

    name: str
    space: Space
    strategy: Strategy
    why_over: Callable[[History, TimeLeft], str | None]
    share: float = 1.0

    def next(self, history: History, left: TimeLeft) -> Proposal | None:
        """Return the next trial, None when the stage is over, or waits for one that runs."""
        return None if self.why_over(history, left) else self.strategy.next(history, left)


def stages_of(
    space: Space,
    scouting: Space | None,
    settings: SearchSettings,
    hardware: Hardware,
    earlier: Sequence[EarlierBest] = (),
) -> tuple[Stage, ...]:
    """Return the parts of a run in their order.

    Args:
        space: of its plans.
        scouting: the space on one device, where a trial has several.
        settings: limits and thresholds.
        hardware: that trials run on.
        earlier: what earlier runs found.
    """
    last = _search(space, settings, hardware, earlier)
    if scouting is None or not _vary(scouting, needs_one_device):
        return (last,)
    return (_scouts(scouting, settings, hardware), last)


def _search(
    space: Space, settings: SearchSettings, hardware: Hardware, earlier: Sequence[EarlierBest]
) -> Stage:
    # The order of the search is about sharding itself: it changes what other settings are worth.
    varies = "sharding" in space.by_name and space.by_name["sharding"].varies
    in_one_go = sharded_search if varies else unsharded_search

    def proposers(history: History) -> Sequence[Proposer]:
        order = after_scouts if _is_scouted(history) else in_one_go
        return order(settings, hardware, earlier)

    def why_over(history: History, left: TimeLeft) -> str | None:
        knobs = not_scouted(history) if _is_scouted(history) else every_knob
        return trials_used_up(history, settings) or gains_nothing(history, settings, knobs)

    strategy = Strategy(settings, hardware, proposers)
    return Stage(name="search", space=space, strategy=strategy, why_over=why_over)


def _scouts(space: Space, settings: SearchSettings, hardware: Hardware) -> Stage:
    def why_over(history: History, left: TimeLeft) -> str | None:
        to_begin_s = expected_s(space.baseline, history, hardware)
        is_too_dear = to_begin_s > left.search_s or space.baseline in history.cut_short
        if history.baseline is None and is_too_dear:
            return "no time for one-device trials"
        return (
            why_no_baseline(history)
            or share_used_up(history, settings)
            or gains_nothing(history, settings, needs_one_device)
        )

    return Stage(
        name="one-device trials",
        space=space,
        strategy=Strategy(settings, hardware, lambda history: for_scouts(settings, hardware)),
        why_over=why_over,
        share=settings.scout_share,
    )


def _is_scouted(history: History) -> bool:
    """Whether one device showed more than how fast the baseline is."""
    return history.scouts is not None and len(history.scouts.ranking) > 1


def _vary(space: Space, knobs: Knobs) -> bool:
    return any(domain.varies and knobs(domain.knob) for domain in space.domains)
