"""The interface of what is told about a run, such as the command line's live table."""

from collections.abc import Mapping
from typing import Protocol

from autotune.agent.proposal import Proposal
from autotune.trials.result import Phase, TrialResult


class Observer(Protocol):
    """Called by the search in its own thread; must return quickly."""

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """Learn that a trial starts."""

    def on_phases(self, phases: Mapping[int, Phase]) -> None:
        """Learn the phases of the running trials, by their numbers; told twice a second."""

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """Learn that a trial ended and is in the store."""

    def on_note(self, text: str) -> None:
        """Learn of an event that is worth a line to the user."""


class SilentObserver:
    """An observer that does nothing."""

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """Do nothing."""

    def on_phases(self, phases: Mapping[int, Phase]) -> None:
        """Do nothing."""

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """Do nothing."""

    def on_note(self, text: str) -> None:
        """Do nothing."""
