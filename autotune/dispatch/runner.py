"""The interface through which the agent runs trials."""

from dataclasses import dataclass
from typing import Protocol

from autotune.search_space.hardware import Hardware
from autotune.trials.cause import Cause
from autotune.trials.request import TrialRequest
from autotune.trials.result import Phase, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial that has ended or was killed, with its result; its devices are free again."""

    request: TrialRequest
    result: TrialResult


class Runner(Protocol):
    """Runs trials on free devices. One thread owns it and makes all calls.

    Every submitted trial comes back from `wait` exactly once, however it ends.
    """

    @property
    def hardware(self) -> Hardware:
        """The hardware that trials run on."""

    @property
    def capacity(self) -> int:
        """The number of devices; a trial takes one for each of its ranks."""

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on `request.place.world_size` free devices.

        Raises:
            RuntimeError: when fewer devices are free.
            ClusterError: when the cluster is gone.
        """

    def wait(self, timeout_s: float) -> list[Finished]:
        """Wait up to `timeout_s` for a trial to end; return those that have ended, if any."""

    def phases(self) -> dict[int, Phase]:
        """Return the phase of each running trial by its number."""

    def cancel(self, number: int, cause: Cause) -> None:
        """Stop a running trial; `wait` returns it with the outcome `cancelled` and `cause`."""

    def drop(self) -> list[Finished]:
        """Return the trials that still run, as far as they came; for a run whose time is over.

        It waits for nothing: their processes end with `close`.
        """

    def close(self) -> None:
        """Kill the trials that still run and free their devices. Safe to call twice."""
