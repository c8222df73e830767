"""Asks the proposers in their order and drops the proposals that the gate refuses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.forecast.durations import expected_s
from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.baseline import next_baseline
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from autotune.search_space.changes import describe_changes
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan  # noqa: TC001  as all others are imported
from autotune.trials.result import Purpose

# Ratio of two expected gains from which the larger one is preferred for its own sake.
_MUCH_LARGER = 1.5


@dataclass(frozen=True, slots=True)
class Unaffordable:
    """A plan that was not tried for lack of time, in words, and the seconds that it would take."""

    words: str
    trial_s: float


class Strategy:
    """Chooses the next search trial: the first proposal without an objection of the gate.

    Args:
        hardware: the machine that trials run on.
        proposers: returns the proposers to ask, in their order, for a history.
    """

    def __init__(
        self,
        hardware: Hardware,
        proposers: Callable[[History], Sequence[Proposer]],
    ) -> None:
        self._gate, self._hardware = Gate(hardware=hardware), hardware
        self._proposers = proposers
        self._unaffordable: dict[Plan, Unaffordable] = {}

    def next(self, history: History, left: TimeLeft) -> Proposal | None:
        """Return the next search trial, None when nothing is left to try in the time left.

        Raises:
            NothingRanError: when not even the smallest baseline runs.
        """
        if history.baseline is None:
            return None if history.pending else next_baseline(history)
        for proposer in self._proposers(history):
            proposal = self._first_allowed(proposer, history, left)
            if proposal is not None:
                return proposal
        return None

    def _first_allowed(
        self, proposer: Proposer, history: History, left: TimeLeft
    ) -> Proposal | None:
        proposals = iter(proposer.candidates(history))
        first = next((p for p in proposals if self._is_allowed(p, history, left)), None)
        if first is None or first.gain is None or first.purpose is Purpose.SAMPLER:
            return first
        return self._first_or_largest_gain(first, proposals, history, left)

    def _first_or_largest_gain(
        self, first: Proposal, rest: Iterator[Proposal], history: History, left: TimeLeft
    ) -> Proposal:
        """Return `first`, or the proposal with the largest gain if it would not fit after `first`.

        The first proposal gains most per second, so it comes before a longer trial with a much
        larger gain, as long as the time left is enough for both.
        """
        least = _MUCH_LARGER * _gain(first)
        dearer = sorted((p for p in rest if _gain(p) > least), key=_gain, reverse=True)
        anchor = next((p for p in dearer if self._is_allowed(p, history, left)), first)
        fits_both = self._is_allowed(anchor, history, left.after(first.trial_s))
        return first if fits_both else anchor

    def _is_allowed(self, proposal: Proposal, history: History, left: TimeLeft) -> bool:
        objection = self._gate.objection(
            proposal.plan, history, left, proposal.trial_s, proposal.gain
        )
        if objection is Objection.TIME and proposal.purpose is not Purpose.SAMPLER:
            change = describe_changes(proposal.plan, history.best.plan)
            words = f"{change} on top of trial {history.best.number}"
            trial_s = max(proposal.trial_s, expected_s(proposal.plan, history, self._hardware))
            self._unaffordable[proposal.plan] = Unaffordable(words, trial_s)
        return objection is None

    def unaffordable(self, history: History) -> list[Unaffordable]:
        """Return the plans that were not tried for lack of time."""
        return [found for plan, found in self._unaffordable.items() if plan not in history.tried]


def _gain(proposal: Proposal) -> float:
    return proposal.gain or 0.0
