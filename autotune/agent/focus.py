"""The knobs that a stage of the search tunes, and a proposer limited to them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.search_space.knobs.knob import Knob, MeasuredOn
from autotune.search_space.plan import Plan
from autotune.search_space.space import Domain, Space

Knobs = Callable[[Knob], bool]
"""Selects the knobs that are tuned."""


def every_knob(knob: Knob) -> bool:
    """Select every knob."""
    return True


def needs_ranks(knob: Knob) -> bool:
    """Select the knobs whose effect shows only on all devices of a trial.

    They depend on each other by memory: sharding makes room for a larger batch, for example.
    """
    return knob.measured_on is not MeasuredOn.ONE_DEVICE


def needs_one_device(knob: Knob) -> bool:
    """Select the knobs whose effect shows on one device."""
    return knob.measured_on is MeasuredOn.ONE_DEVICE


def not_scouted(history: History) -> Knobs:
    """Return a selection of the knobs without two values measured on one device."""
    scouts = history.scouts.measured if history.scouts else ()
    seen = {setting for plan in scouts for setting in plan.items}
    tried = Counter(name for name, _ in seen)
    return lambda knob: needs_ranks(knob) or tried[knob.name] < 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Limits another proposer to some knobs: the others keep the values of the best plan.

    Attributes:
        knobs: returns the selection of knobs that may change, for a history.
        proposer: the proposer to limit.
    """

    knobs: Callable[[History], Knobs]
    proposer: Proposer

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the proposals in the space where the other knobs have the best plan's values."""
        around = _held(history.space, history.best.plan, self.knobs(history))
        return self.proposer.candidates(replace(history, space=around))


def _held(space: Space, plan: Plan, free: Knobs) -> Space:
    return replace(
        space,
        domains=tuple(d if free(d.knob) else _at(plan, d) for d in space.domains),
    )


def _at(plan: Plan, domain: Domain) -> Domain:
    # A knob that depends on another, such as prefetch on workers, may have no value in the plan.
    return replace(domain, values=(plan.get(domain.knob.name, domain.values[0]),))
