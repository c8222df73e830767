"""A line for each trial, the same while a run goes on and when it is looked at later."""

from dataclasses import dataclass

from rich.text import Text

from autotune.report.lineage import fitted
from autotune.report.words import UNKNOWN, ending, samples, size
from autotune.trials.result import Outcome, TrialResult

_HEADINGS = ("#", "from", "samples/s", "times", "memory", "outcome", "what it changes")
_WIDTHS = (4, 4, 9, 7, 9, 13)  # characters of all columns but the last
_GAP = "  "
_LEFT = {"outcome", "what it changes"}  # columns that are aligned to the left
_STYLES = {Outcome.OK: "green", Outcome.CANCELLED: "dim", None: "dim"}
WINNER, OUT = "winner", "may not win"
_MARKS = {WINNER: "bold green", OUT: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLine:
    """What the line of a trial shows.

    Attributes:
        number: of the trial.
        origin: the trial that it is a change of; None: there is none.
        change: what it changes, as whole words.
        result: None while it runs.
        baseline: the baseline's samples per second; None where unknown.
        mark: `WINNER` or `OUT` in the place of the outcome; None: the outcome is shown.
    """

    number: int
    origin: int | None
    change: list[str]
    result: TrialResult | None
    baseline: float | None
    mark: str | None = None


def heading() -> Text:
    """Return the line above the trials."""
    return Text(_joined(_HEADINGS, _HEADINGS[-1]), style="bold")


def trial_text(line: TrialLine, width: int | None) -> Text:
    """Return the line of a trial; only the change depends on the width of the terminal.

    Args:
        line: what to show.
        width: of the terminal in characters; None: as wide as it takes.
    """
    measured = line.result and line.result.measurement
    ratio = measured.throughput / line.baseline if measured and line.baseline else None
    outcome, style = _outcome(line)
    cells = (
        str(line.number),
        UNKNOWN if line.origin is None else str(line.origin),
        samples(measured.throughput if measured else None),
        UNKNOWN if ratio is None else f"{ratio:.2f}",
        size(measured.memory_bytes) if measured else UNKNOWN,
        outcome,
    )
    before = _joined(cells, "")
    room = None if width is None else width - len(before)
    text = Text(before + fitted(line.change, room), no_wrap=True)
    start = len(before) - len(_GAP) - _WIDTHS[-1]
    text.stylize(style, start, start + _WIDTHS[-1])
    return text


def _outcome(line: TrialLine) -> tuple[str, str]:
    """Return how the trial ended, in words, and the style of these."""
    result = line.result
    if line.mark is not None:
        return line.mark, _MARKS[line.mark]
    if result is None:
        return ending(None), "dim"
    if result.numerics is not None and not result.numerics.unchecked:
        passed = result.numerics.passed
        return ("passed", "green") if passed else ("failed", "bold red")
    raced = result.measurement is not None and result.measurement.raced
    return ending(result.outcome, raced=raced), _STYLES.get(result.outcome, "red")


def _joined(cells: tuple[str, ...], last: str) -> str:
    """Return the cells in their columns, with the last one as it is."""
    aligned = [
        f"{cell:<{width}}" if heading in _LEFT else f"{cell:>{width}}"
        for cell, width, heading in zip(cells, _WIDTHS, _HEADINGS, strict=False)
    ]
    return _GAP.join([*aligned, last])
