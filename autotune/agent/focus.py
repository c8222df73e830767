"""Which knobs a part of the search tunes, and proposers that keep to them."""

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
    """Select the knobs whose worth shows only on all devices of a trial.

    Memory ties them together: sharding makes room for a batch, or spares checkpointing.
    """
    return knob.measured_on is not MeasuredOn.ONE_DEVICE


def needs_one_device(knob: Knob) -> bool:
    """Select the knobs whose worth shows on one device."""
    return knob.measured_on is MeasuredOn.ONE_DEVICE


def not_scouted(history: History) -> Knobs:
    """Select the knobs of which the trials on one device did not compare two values."""
    scouts = history.scouts.measured if history.scouts else ()
    seen = {setting for plan in scouts for setting in plan.items}
    tried = Counter(name for name, _ in seen)
    return lambda knob: needs_ranks(knob) or tried[knob.name] < 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Another proposer, for some knobs: the others keep the values of the best plan.

    Attributes:
        knobs: that it may change, given what is known.
    """

    knobs: Callable[[History], Knobs]
    proposer: Proposer

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield what the proposer does in the space around the best plan."""
        around = _held(history.space, history.best.plan, self.knobs(history))
        return self.proposer.candidates(replace(history, space=around))


def _held(space: Space, plan: Plan, free: Knobs) -> Space:
    return replace(
        space,
        domains=tuple(d if free(d.knob) else _at(plan, d) for d in space.domains),
    )


def _at(plan: Plan, domain: Domain) -> Domain:
    # A knob of another knob, such as prefetch without workers, has no value in the plan.
    return replace(domain, values=(plan.get(domain.knob.name, domain.values[0]),))
