"""Prints the progress of `autotune run`: a line for each trial that ended, and a status."""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.agent.proposal import Proposal
from autotune.clock import Budget
from autotune.report.words import size
from autotune.search_space.plan import Plan, describe_diff
from autotune.trials.result import Measurement, Outcome, TrialResult

_STYLES = {Outcome.OK: "green", Outcome.CANCELLED: "dim"}
_PLAN_WIDTH = 44  # characters of a running trial's plan
_ERROR_WIDTH = 120  # characters of an error


class LiveTable:
    """Prints each trial when it ends, and on a terminal a status line that changes in place.

    The status names the running trials, the fastest so far and the used budget. It is an
    `Observer`, and a context manager while the status is shown.
    """

    def __init__(self, console: Console, baseline: Plan, budget: Budget) -> None:
        self._console = console
        self._baseline = baseline
        self._budget = budget
        self._running: dict[int, tuple[Proposal, float]] = {}
        self._best: tuple[int, float, int] | None = None
        self._live = Live(
            get_renderable=self._status, console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        """Print the heading, and start the status line."""
        self._console.print(
            f"{'trial':>5}  {'purpose':<9} {'samples/s':>12} {'95 %':>7} {'memory':>9}  "
            f"{'outcome':<13} {'used':>6}  change from the baseline: reason",
            style="bold",
            soft_wrap=True,
        )
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the status line."""
        if self._console.is_terminal:
            self._live.stop()

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """Add a trial to the status line."""
        self._running[number] = (proposal, time.monotonic())

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """Print the line of a trial that ended."""
        self._running.pop(number, None)
        measured = result.measurement
        if measured and not measured.raced:
            # A trial on several devices always ranks above one on a single device.
            shown = (proposal.num_ranks, measured.throughput, number)
            self._best = max(self._best or shown, shown)
        outcome = _outcome(result)
        line = Text(f"{number:>5}  {proposal.purpose.value:<9} {_speed(measured)}  ")
        line.append(f"{outcome:<13}", style=_STYLES.get(result.outcome, "red"))
        line.append(f" {self._budget.used_s:>5.0f}s  ")
        if proposal.num_ranks > 1:
            line.append(f"on {proposal.num_ranks} devices: ")
        changes, reason = describe_diff(proposal.plan, self._baseline), proposal.reason
        line.append(changes, style="bold")
        # A reason may begin with the changes themselves; they are printed once.
        is_repeated = reason.startswith(f"{changes} ")
        line.append(reason.removeprefix(changes) if is_repeated else f": {reason}", style="dim")
        if result.error:
            line.append(f" [{_short(result.error)}]", style="red")
        self._console.print(line, soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print a remark of the agent."""
        self._console.print(Text(f"       {text}", style="italic"), soft_wrap=True)

    def _status(self) -> Text:
        used, total = self._budget.used_s, self._budget.total_s
        text = Text(f"{used:.0f} of {total:.0f} s", style="cyan")
        if self._best is not None:
            _, speed, best = self._best
            text.append(f"   fastest so far {speed:,.1f} samples/s (trial {best})")
        for number, (proposal, since) in self._running.items():
            changed = describe_diff(proposal.plan, self._baseline)[:_PLAN_WIDTH]
            text.append(f"\n  running trial {number}, {proposal.purpose.value}: {changed}")
            text.append(f", {time.monotonic() - since:.0f} s")
        return text


def _outcome(result: TrialResult) -> str:
    raced = result.measurement is not None and result.measurement.raced
    return "ok, cut short" if raced else result.outcome.value


def _short(error: str) -> str:
    line = error.splitlines()[0]
    return line if len(line) <= _ERROR_WIDTH else line[: _ERROR_WIDTH - 3] + "..."


def _speed(measured: Measurement | None) -> str:
    if measured is None:
        return f"{'':>12} {'':>7} {'':>9}"
    half = (measured.throughput_high - measured.throughput_low) / 2 / measured.throughput
    return f"{measured.throughput:>12,.1f} {f'±{half:.1%}':>7} {size(measured.memory_bytes):>9}"
