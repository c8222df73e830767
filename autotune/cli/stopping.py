"""Ends a run in good order when the user, a scheduler or a closed terminal says so."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.errors import InterruptedRunError

# The signals that end a run, in the words of the line that says so.
SIGNALS = {
    signal.SIGINT: "Ctrl-C; press it again to stop at once",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP: the terminal was closed",
}
NOTHING_MEASURED = (
    "stopped before a trial was measured, so no plan was written; the same command goes on"
)


class Stop:
    """Whether Ctrl-C, SIGTERM or SIGHUP has told a run to end.

    Before `begin`, the first of them raises InterruptedRunError: there is no trial to wait for.
    After it, the first is noted. A Ctrl-C after another signal raises KeyboardInterrupt.

    Args:
        tell: prints a line for the user.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._is_set = self._has_begun = False
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def is_set(self) -> bool:
        """Return whether the run was told to end."""
        return self._is_set

    def begin(self) -> None:
        """Note that trials begin."""
        self._has_begun = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, as `signal.signal` calls it.

        Raises:
            InterruptedRunError: before `begin`.
            KeyboardInterrupt: for a Ctrl-C when the run was told to end before.
        """
        if number == signal.SIGHUP:
            self._leave_terminals()
        if self._is_set:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self._is_set = True
        self._tell(f"stopping after {SIGNALS[signal.Signals(number)]}")
        if not self._has_begun:
            raise InterruptedRunError(NOTHING_MEASURED)

    def _leave_terminals(self) -> None:
        """Write nothing more to terminals: once they are closed, that is an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextmanager
def stop_on_signals(tell: Callable[[str], None]) -> Iterator[Stop]:
    """Yield a `Stop` that knows of the signals that come inside the block."""
    stop = Stop(tell)
    before = handle_signals(stop.on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def handle_signals(
    handler: Callable[[int, FrameType | None], object],
) -> dict[signal.Signals, "signal._HANDLER"]:
    """Handle the signals that end a run by `handler`; return the handlers from before.

    SIGHUP stays ignored for a command behind `nohup`.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handler)
    return before
