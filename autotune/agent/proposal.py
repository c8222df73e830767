"""Proposals of trials, with purpose and reason, and the interface of proposers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from autotune.agent.history import History
from autotune.search_space.plan import Plan
from autotune.storage.records import Promise
from autotune.trials.quality import QualityRequest
from autotune.trials.result import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial to run.

    Attributes:
        plan: the plan to run.
        purpose: what the trial is for.
        reason: why this plan is tried, for the user.
        compare_with: the reference plan of a numerics check.
        trial_s: a lower bound of the trial's seconds; 0 if the proposer did not estimate it.
        gain: expected gain of the log value; None if the proposer did not compute it.
        promise: what is expected of it, to be held against its result.
        quality: what to train to, for a training to a target.
        num_ranks: devices of the trial; the agenda sets it, not the proposer.
    """

    plan: Plan
    purpose: Purpose
    reason: str
    compare_with: Plan | None = None
    trial_s: float = 0.0
    gain: float | None = None
    promise: Promise | None = None
    quality: QualityRequest | None = None
    num_ranks: int = 1


class Proposer(Protocol):
    """A source of proposals, as a pure function of the history."""

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield proposals lazily, most promising first.

        Some may have been tried, not fit in memory or take longer than the time left: the `Gate`
        drops those of all proposers.
        """
