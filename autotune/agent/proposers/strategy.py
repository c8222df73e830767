"""Asks proposers in their order, with the gate in front of them."""

from collections.abc import Callable, Sequence

from autotune.agent.history import History
from autotune.agent.proposal import Proposal, Proposer
from autotune.agent.proposers.baseline import next_baseline
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import describe_diff
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
        self.left_out: dict[str, None] = {}  # for time, in words; a dict keeps the order

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
        for proposal in proposer.candidates(history):
            objection = self._gate.objection(proposal.plan, history, left, proposal.trial_s)
            if objection is None:
                return proposal
            if objection is Objection.TIME and proposal.purpose is not Purpose.SAMPLER:
                self.left_out[describe_diff(proposal.plan, history.space.baseline)] = None
        return None
