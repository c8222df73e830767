"""The connection on which the processes of a command report to the trial's own process."""

import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from autotune.trials.failure import failed
from autotune.trials.result import Phase


class Wire:
    """Reports of this process; nothing is connected before the first of them.

    Args:
        address: of the listening socket; None: nobody listens, and nothing is sent.
        script: the user's file, whose frames errors show.
    """

    def __init__(self, address: str | None, script: Path) -> None:
        self._address, self._script = address, script
        self._connection: Connection | None = None
        self._phase = Phase.BUILD

    def send(self, item: Any) -> None:
        """Send a phase, a result, or facts."""
        if self._address is None:
            return
        if isinstance(item, Phase):
            self._phase = item
        if self._connection is None:
            self._connection = Client(self._address, family="AF_UNIX")
        self._connection.send(item)

    def first_step(self) -> None:
        """Report that the first step begins."""
        self.send(Phase.FIRST_STEP)

    def fails(self, error: BaseException) -> bool:
        """Report an error as the trial's result; return whether anybody listens."""
        self.send(failed(error, self._phase, self._script))
        return self._address is not None

    def report_uncaught(self) -> None:
        """Report exceptions that end this process as the trial's result."""
        if self._address is None:
            return
        before = sys.excepthook

        def report(kind: Any, error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            if isinstance(error, Exception):
                self.fails(error)

        sys.excepthook = report
