"""Prints what a run concluded: the verdict, the figures, why, and what the user must know."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.agent.stopping import NOT_TRIED
from autotune.cli.output import print_notes, print_rendered, stdout
from autotune.report.as_json import Conclusion
from autotune.report.conclusion import (
    Line,
    claim,
    label,
    sorted_remarks,
    waterfall,
)
from autotune.report.verdict import Verdict, Word
from autotune.report.words import duration, samples, size

_STYLES = {
    Word.CONFIRMED: "bold green",
    Word.UNCERTAIN: "bold yellow",
    Word.NO_GAIN: "bold",
    Word.REJECTED: "bold red",
}
_WIDE = 120  # columns of a terminal from which a waterfall has bars
_BAR_WIDTH = 20  # characters
# Characters for the settings in a waterfall, and what its other columns take at most.
_LEAST_ROOM, _OTHER_COLUMNS = 28, 66
_TITLE = "why: what the settings are worth, as factors that multiply to the whole"


def print_verdict(verdict: Verdict) -> None:
    """Print the verdict, and below it what it rests on."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text(label(verdict), style=_STYLES[verdict.word]), Text(claim(verdict)))
    grid.add_row("", Text(f"rests on: {verdict.rests_on}", style="dim"))
    print_rendered("", grid)


def print_conclusion(run: Mapping[str, Any], conclusion: Conclusion) -> None:
    """Print the figures of baseline and winner, why it is better, and the remarks.

    Args:
        run: a `run_view` with a winner.
        conclusion: the verdict and the why.
    """
    winner = run["winner"]
    print_rendered("", _figures(winner, kept=winner["kept_baseline"]))
    if conclusion.why is not None:
        reasons = {knob: change["why"] or "" for knob, change in winner["changes"].items()}
        lines = waterfall(conclusion.why, reasons)
        print_rendered("", Text(_TITLE, style="bold"), _waterfall(lines, stdout()))
    remarks = sorted_remarks(winner["remarks"], conclusion.verdict)
    ends, _, untried = str(run["stop_reason"] or "").partition(f"; {NOT_TRIED}")
    print_notes("your training must change", remarks.training, style="yellow")
    print_notes("watch out", remarks.warnings, style="yellow")
    print_notes("notes", remarks.notes)
    print_notes("not tried for lack of time", untried.split("; ") if untried else ())
    print_notes("the search ended", [ends] if ends else ())


def _figures(winner: Mapping[str, Any], *, kept: bool) -> Table:
    table = _table()
    for column in ("", "samples/s", "memory"):
        table.add_column(column, justify="right" if column else "left")
    rows = [["your baseline", "baseline_"], ["winner", ""]]
    times = _times_of(winner)
    for heading in times:
        table.add_column(heading, justify="right")
    for name, prefix in rows[:1] if kept else rows:
        cells = [samples(winner[f"{prefix}throughput"]), size(winner[f"{prefix}memory_bytes"])]
        cells += [duration(winner[f"{prefix}{key}"]) for key in times.values()]
        table.add_row(name, *cells)
    return table


def _times_of(winner: Mapping[str, Any]) -> dict[str, str]:
    """Return the headings of the times that a winner has, and their names."""
    if winner["start_s"] is not None:
        return {"start-up": "start_s", "to train": "train_s"}
    if winner["train_s"] is not None or winner["baseline_train_s"] is not None:
        return {"to the target": "train_s"}
    return {}


def _waterfall(lines: list[Line], console: Console) -> Table:
    """Return the waterfall; wide terminals have a bar for each line."""
    table = _table()
    table.add_column("", no_wrap=True)
    for column in ("times", "95 % interval", "so far"):
        table.add_column(column, justify="right", no_wrap=True)
    has_bars = console.is_terminal and console.width >= _WIDE
    if has_bars:
        table.add_column("", width=_BAR_WIDTH)
    table.add_column("")
    most = max(max(line.before, line.after) for line in lines)
    for line in lines:
        bar: list[RenderableType] = [_bar(line, most)] if has_bars else []
        is_end = not line.worth
        table.add_row(
            Text(_wrapped(line.what, console), style="bold" if is_end else ""),
            line.worth,
            line.interval,
            line.so_far,
            *bar,
            Text(line.note, style="" if is_end else "dim"),
        )
    return table


def _wrapped(settings: str, console: Console) -> str:
    """Return settings on several lines where a terminal is narrow, none of them broken."""
    if not console.is_terminal:
        return settings
    room = max(_LEAST_ROOM, console.width - _OTHER_COLUMNS)
    return textwrap.fill(settings, room, break_long_words=False, break_on_hyphens=False)


def _bar(line: Line, most: float) -> Bar:
    """Return the line's part of the way from nothing to the largest factor."""
    begin, end = sorted((line.before, line.after))
    return Bar(most, begin if line.worth else 0.0, end, width=_BAR_WIDTH)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
