"""Which knobs a part of the search tunes, and proposers that keep to them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.search_space.plan import Plan
from autotune.search_space.space import FOLLOWS, Domain, Space

COMMUNICATION = frozenset({"bucket_mb", "gradient_as_bucket_view", "static_graph", "comm_hook"})
_AMONG_RANKS = COMMUNICATION | {
    "sharding",
    "batch_size",
    FOLLOWS,
    "activation_checkpointing",
    "compile_scope",
}

Knobs = Callable[[str], bool]
"""Whether a knob, given by its name, is tuned."""


def every_knob(name: str) -> bool:
    """Where there is nothing to divide."""
    return True


def among_ranks(name: str) -> bool:
    """Knobs of what ranks share and say to each other, and those whose best value depends on it.

    Memory ties them together: sharding makes room for a batch, or spares checkpointing.
    """
    return name in _AMONG_RANKS


def not_scouted(history: History) -> Knobs:
    """Return whether a knob is among ranks, or one of which the scouts tried no second value."""
    scouts = history.scouts.measured if history.scouts else ()
    seen = {setting for plan in scouts for setting in plan.items}
    tried = Counter(name for name, _ in seen)
    return lambda name: among_ranks(name) or tried[name] < 2


def inside_a_rank(name: str) -> bool:
    """The other knobs; what they are worth, one device shows."""
    return name not in _AMONG_RANKS


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
        domains=tuple(d if free(d.knob.name) else _at(plan, d) for d in space.domains),
    )


def _at(plan: Plan, domain: Domain) -> Domain:
    # A knob of another knob, such as prefetch without workers, has no value in the plan.
    return replace(domain, values=(plan.get(domain.knob.name, domain.values[0]),))
