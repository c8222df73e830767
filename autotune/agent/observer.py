"""Who watches a run; the command line's live table is one."""

from typing import Protocol

from autotune.agent.proposal import Proposal
from autotune.trials.result import TrialResult


class Observer(Protocol):
    """Called by the search in its own thread; must return quickly."""

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """A trial starts."""

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """A trial ended and is in the store."""

    def on_note(self, text: str) -> None:
        """Something worth a line to the user happened."""


class SilentObserver:
    """Watches nothing."""

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """Say nothing."""

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """Say nothing."""

    def on_note(self, text: str) -> None:
        """Say nothing."""
