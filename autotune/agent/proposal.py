"""What a proposer gives: a plan, its purpose, and the reason in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from autotune.agent.history import History
from autotune.search_space.plan import Plan
from autotune.trials.result import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial to run.

    Attributes:
        compare_with: the reference of a numerics check.
        trial_s: that the trial will take at the least, where the proposer looked into it.
        gain: of the log value, as expected; None where the proposer did not look into it.
        num_ranks: devices of the trial. A proposer leaves it: it follows from the plan's space.
    """

    plan: Plan
    purpose: Purpose
    reason: str
    compare_with: Plan | None = None
    trial_s: float = 0.0
    gain: float | None = None
    num_ranks: int = 1


class Proposer(Protocol):
    """An idea of what to try next, as a pure function of the history."""

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield proposals, most promising first, lazily.

        Plans that were tried, that cannot fit or that time cannot pay for may be among them:
        the `Gate` drops those for all proposers alike.
        """
