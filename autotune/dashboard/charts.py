"""Builds the charts of pages, with Plotly."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from dash.development.base_component import Component

from autotune.dashboard import colours
from autotune.dashboard.colours import colour_of, symbol_of
from autotune.dashboard.dots import ROLES, Role, RunDots
from autotune.dashboard.figure import Trace, chart, line_at
from autotune.report.words import knob_value, samples
from autotune.storage.dots import Dot
from autotune.storage.statistics import Point
from autotune.units import GIB

MAX_LABELS = 40  # dots whose trial is written beside them
MAX_INTERVALS = 200  # dots with a bar for their interval
SAMPLES_AXIS = {"title": {"text": "samples/s", "standoff": 8}, "rangemode": "tozero"}


def progress(run: RunDots, best: Sequence[Point], until: datetime) -> Component:
    """Return a chart of each trial's throughput, and of the highest so far, over a run's minutes.

    Args:
        run: the trials.
        best: those that were faster than all before them.
        until: when the run ended, or now.
    """
    began = run.run.created_at

    def minutes(time: datetime) -> float:
        return round((time - began).total_seconds() / 60, 3)

    steps = [(minutes(time), speed) for time, speed in _records(run, best)]
    if steps:
        steps.append((max(minutes(until), steps[-1][0]), steps[-1][1]))
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "highest so far",
        "x": [at for at, _ in steps],
        "y": [speed for _, speed in steps],
        "line": {"shape": "hv", "color": colours.LINE, "width": 2},
        "hoverinfo": "skip",
    }
    dots = _dots(run, lambda dot: minutes(dot.finished_at or until), run.measured)
    fallen = _dots(run, lambda dot: minutes(dot.finished_at or until), run.failed)
    shapes, notes = _levels(run)
    return chart(
        [line, *dots, *fallen],
        name="progress-chart",
        label=f"Throughput of {len(run.measured)} trials over the minutes of the run",
        across={"title": {"text": "minutes since the run began"}, "rangemode": "tozero"},
        upwards=SAMPLES_AXIS,
        shapes=shapes,
        annotations=notes,
    )


def _records(run: RunDots, best: Sequence[Point]) -> list[tuple[datetime, float]]:
    """Return when a trial that may win was faster than all such trials before it, and how fast."""
    ended: list[Point | Dot] = [*best, *run.measured]
    seen = [
        (dot.finished_at, dot.throughput)
        for dot in ended
        if dot.plan not in run.disqualified and dot.finished_at and dot.throughput
    ]
    records: list[tuple[datetime, float]] = []
    for time, speed in sorted(seen):
        if not records or speed > records[-1][1]:
            records.append((time, speed))
    return records


def _levels(run: RunDots) -> tuple[list[Any], list[Any]]:
    """Return lines at the throughputs of baseline and winner, as the conclusion gives them."""
    winner = run.run.winner
    if winner is None:
        return [], []
    levels = [("baseline", winner.baseline.throughput, colours.BASELINE)]
    if not winner.kept_baseline:
        levels.append(("winner", winner.own.throughput, colours.WINNER))
    lines = [
        line_at(speed, f"{name} {samples(speed)}", colour)
        for name, speed, colour in levels
        if speed is not None
    ]
    return [shape for shape, _ in lines], [note for _, note in lines]


def _dots(run: RunDots, across: Callable[[Dot], float | None], dots: Sequence[Dot]) -> list[Trace]:
    """Return the marks of each role that some of `dots` have."""
    by_role: dict[Role, list[Dot]] = {role: [] for role in ROLES}
    for dot in dots:
        by_role[run.role(dot)].append(dot)
    labelled = len(run.measured) <= MAX_LABELS
    return [
        _marks(run, role.name, own, [across(dot) for dot in own], labelled=labelled)
        | {"marker": {"color": role.colour, "symbol": role.symbol, "size": role.size}}
        for role, own in by_role.items()
        if own
    ]


def _marks(
    run: RunDots, name: str, dots: Sequence[Dot], across: Sequence[float | None], *, labelled: bool
) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers+text" if labelled else "markers",
        "name": name,
        "x": list(across),
        "y": [dot.throughput or 0.0 for dot in dots],
        "error_y": _intervals(dots),
        "text": [str(dot.number) for dot in dots],
        "textposition": "top center",
        "customdata": [dot.number for dot in dots],
        "hovertext": [run.pointed(dot) for dot in dots],
        "hoverinfo": "text",
        "cliponaxis": False,
    }


def _intervals(dots: Sequence[Dot]) -> dict[str, Any]:
    return {
        "type": "data",
        "visible": len(dots) <= MAX_INTERVALS,
        "symmetric": False,
        "array": [_above(dot.throughput, dot.high) for dot in dots],
        "arrayminus": [_above(dot.low, dot.throughput) for dot in dots],
        "thickness": 1.2,
        "width": 4,
    }


def _above(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else max(high - low, 0.0)


def trade_off(run: RunDots, front: set[int], knob: str | None) -> Component:
    """Return a chart of throughput against peak memory, with a colour for each of a knob's values.

    Without a knob, marks tell baseline, winner and the trials that no other beats in both.
    Trials that ran out of memory stand at the size of the device's.
    """
    known = [dot for dot in run.measured if dot.memory_bytes is not None]
    traces = _dots(run, _memory, known) if knob is None else _by_value(run, known, knob)
    best = sorted((dot for dot in known if dot.number in front), key=lambda dot: _memory(dot) or 0)
    if best:
        traces.insert(0, _front(best))
    shapes = []
    size = run.run.new.hardware.get("device_memory_bytes")
    if run.failed and size:
        traces += _dots(run, lambda dot: size / GIB, run.failed)
        shapes.append(_wall(size / GIB))
    return chart(
        traces,
        name="trade-off-chart",
        label=f"Throughput of {len(known)} trials against their peak memory",
        across={"title": {"text": "peak memory (GiB)"}, "rangemode": "tozero"},
        upwards=SAMPLES_AXIS,
        shapes=shapes,
    )


def _memory(dot: Dot) -> float | None:
    return None if dot.memory_bytes is None else round(dot.memory_bytes / GIB, 3)


def _front(dots: Sequence[Dot]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "no other is better in both",
        "x": [_memory(dot) for dot in dots],
        "y": [dot.throughput for dot in dots],
        "line": {"color": colours.FRONT, "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }


def _wall(memory: float) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": memory,
        "x1": memory,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": colours.FAILED, "dash": "dash", "width": 1},
    }


def _by_value(run: RunDots, dots: Sequence[Dot], knob: str) -> list[Trace]:
    groups: dict[str, list[Dot]] = {}
    for dot in dots:
        value = dot.plan.values.get(knob)
        name = f"{knob} does not apply" if value is None else f"{knob}={knob_value(value)}"
        groups.setdefault(name, []).append(dot)
    labelled = len(dots) <= MAX_LABELS
    return [
        _marks(run, name, own, [_memory(dot) for dot in own], labelled=labelled)
        | {"marker": {"color": colour_of(name), "symbol": symbol_of(name), "size": 9}}
        for name, own in sorted(groups.items())
    ]


def windows(measured: Sequence[dict[str, Any]]) -> Component:
    """Return a chart of the throughput of each window over the seconds of measuring."""
    across, seconds = [], 0.0
    for window in measured:
        seconds += window["seconds"]
        across.append(round(seconds, 3))
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": across,
        "y": [window["throughput"] or 0.0 for window in measured],
        "line": {"color": colours.LINE},
        "hovertemplate": "window %{pointNumber}: %{y:.4s} samples/s<extra></extra>",
    }
    return chart(
        [trace],
        name="windows-chart",
        label=f"Throughput of {len(measured)} windows over the seconds of measuring",
        across={"title": {"text": "seconds of measuring"}, "rangemode": "tozero"},
        upwards=SAMPLES_AXIS,
        showlegend=False,
    )


def step_parts(named: Sequence[tuple[str, dict[str, float]]]) -> Component:
    """Return a chart with a bar for each plan, divided into the parts of its step.

    Args:
        named: `(plan, {part: share of 1})`; parts come in the order of the first plan with them.
    """
    parts = list(dict.fromkeys(part for _, shares in named for part in shares))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": [name for name, _ in named],
            "x": [round(100 * shares.get(part, 0.0), 1) for _, shares in named],
            "marker": {"color": colour_of(part)},
            "hovertemplate": f"%{{y}}: {part} %{{x:.1f}} %<extra></extra>",
        }
        for part in parts
    ]
    return chart(
        traces,
        name="step-chart",
        label="The parts of a step, in per cent",
        height=170 + 50 * len(named),
        barmode="stack",
        across={"title": {"text": "% of a step"}, "range": [0, 100]},
        upwards={"autorange": "reversed"},
        showlegend=True,
        bargap=0.35,
    )
