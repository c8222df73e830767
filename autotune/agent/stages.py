"""The stages of a search: trials on one device each, called scouts, then on several devices.

A run whose trials have one device has one stage. With several, scouts first tune the knobs whose
effect one device shows: they run side by side, so there are more of them in the same time. The
second stage starts from their best plans. Only plans measured on all devices of a trial can win.
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
    """A stage of the search: a space, the strategy in it, and the rule that ends it.

    Attributes:
        name: for the user.
        space: the space of its plans.
        strategy: chooses its trials.
        why_over: returns why no further trial is worth running, or None.
        share: part of the search's time and trials after which it is over.
    """

    name: str
    space: Space
    strategy: Strategy
    why_over: Callable[[History, TimeLeft], str | None]
    share: float = 1.0

    def next(self, history: History, left: TimeLeft) -> Proposal | None:
        """Return the next trial, None when the stage is over or waits for a running trial."""
        return None if self.why_over(history, left) else self.strategy.next(history, left)


def stages_of(
    space: Space,
    scouting: Space | None,
    settings: SearchSettings,
    hardware: Hardware,
    earlier: Sequence[EarlierBest] = (),
) -> tuple[Stage, ...]:
    """Return the stages of a run in their order.

    Args:
        space: the space of plans that can win.
        scouting: the space on one device if a trial has several, else None.
        settings: limits and thresholds.
        hardware: the machine that trials run on.
        earlier: the best plans of earlier runs.
    """
    last = _search(space, settings, hardware, earlier)
    if scouting is None or not _vary(scouting, needs_one_device):
        return (last,)
    return (_scouts(scouting, settings, hardware), last)


def _search(
    space: Space, settings: SearchSettings, hardware: Hardware, earlier: Sequence[EarlierBest]
) -> Stage:
    # Sharding changes the gain of other settings, so the order of proposers depends on it.
    varies = "sharding" in space.by_name and space.by_name["sharding"].varies
    in_one_go = sharded_search if varies else unsharded_search

    def proposers(history: History) -> Sequence[Proposer]:
        order = after_scouts if _is_scouted(history) else in_one_go
        return order(settings, hardware, earlier)

    def why_over(history: History, left: TimeLeft) -> str | None:
        knobs = not_scouted(history) if _is_scouted(history) else every_knob
        return trials_used_up(history, settings) or gains_nothing(history, settings, knobs)

    strategy = Strategy(hardware, proposers)
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
        strategy=Strategy(hardware, lambda history: for_scouts(settings, hardware)),
        why_over=why_over,
        share=settings.scout_share,
    )


def _is_scouted(history: History) -> bool:
    """Whether trials on one device measured any plan beside the baseline."""
    return history.scouts is not None and len(history.scouts.ranking) > 1


def _vary(space: Space, knobs: Knobs) -> bool:
    return any(domain.varies and knobs(domain.knob) for domain in space.domains)
