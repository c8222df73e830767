"""Asks proposers in their order, with the gate in front of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.baseline import next_baseline
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, describe_diff
from autotune.trials.result import Purpose


class Strategy:
    """Chooses the next search trial: the first proposal that the gate lets through.

    Args:
        proposers: the ones to ask, in their order, given what is known.
    """

    def __init__(
        self,
        settings: SearchSettings,
        hardware: Hardware,
        proposers: Callable[[History], Sequence[Proposer]],
    ) -> None:
        self._gate = Gate(settings=settings, hardware=hardware)
        self._proposers = proposers
        self._left_out: dict[Plan, str] = {}

    def next(self, history: History, left: TimeLeft) -> Proposal | None:
        """Return the next search trial, None when nothing is left to try or to pay for.

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
        return self._on_route(first, proposals, history, left)

    def _on_route(
        self, first: Proposal, rest: Iterator[Proposal], history: History, left: TimeLeft
    ) -> Proposal:
        """Return `first`, or what promises most if there would be no time for it afterwards.

        The first one gains most for its time. Cheap trials come before a dear one only while the
        dear one still fits.
        """
        dearer = sorted((p for p in rest if _gain(p) > _gain(first)), key=_gain, reverse=True)
        anchor = next((p for p in dearer if self._is_allowed(p, history, left)), first)
        after = replace(
            left,
            search_s=left.search_s - first.trial_s,
            bold_s=None if left.bold_s is None else left.bold_s - first.trial_s,
            total_s=left.total_s - first.trial_s,
        )
        return first if self._is_allowed(anchor, history, after) else anchor

    def _is_allowed(self, proposal: Proposal, history: History, left: TimeLeft) -> bool:
        objection = self._gate.objection(
            proposal.plan, history, left, proposal.trial_s, proposal.gain
        )
        if objection is Objection.TIME and proposal.purpose is not Purpose.SAMPLER:
            change = describe_diff(proposal.plan, history.best.plan)
            self._left_out[proposal.plan] = f"{change} on top of trial {history.best.number}"
        return objection is None

    def left_out(self, history: History) -> list[str]:
        """Return in words what was not tried for lack of time."""
        return [words for plan, words in self._left_out.items() if plan not in history.tried]


def _gain(proposal: Proposal) -> float:
    return proposal.gain or 0.0
