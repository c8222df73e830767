"""The seam between the agent and whatever runs trials."""

from dataclasses import dataclass
from typing import Protocol

from autotune.search_space.hardware import Hardware
from autotune.trials.cause import Cause
from autotune.trials.request import TrialRequest
from autotune.trials.result import TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial that ended, by its own doing or by being killed; its device is free again."""

    request: TrialRequest
    result: TrialResult


class Runner(Protocol):
    """Runs trials on the devices that are free. Owned and called by one thread.

    Every submitted trial comes back from `wait` exactly once, however it ends.
    """

    @property
    def hardware(self) -> Hardware:
        """The machine that trials run on."""

    @property
    def capacity(self) -> int:
        """How many devices there are; a trial takes one for each rank."""

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on as many free devices as its place says that it has ranks.

        Raises:
            RuntimeError: when fewer devices are free.
            ClusterError: when the cluster is gone.
        """

    def wait(self, timeout_s: float) -> list[Finished]:
        """Return the trials that ended, waiting up to `timeout_s` for the first; may be empty."""

    def cancel(self, number: int, cause: Cause) -> None:
        """End a running trial; it comes back from `wait` as `cancelled`, with `cause`."""

    def close(self) -> None:
        """Kill what still runs and give everything back. Safe to call twice."""
