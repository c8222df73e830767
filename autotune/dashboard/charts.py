"""Builds the charts of pages, from Mantine's components."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard.parts import placeholder
from autotune.report.words import knob_value
from autotune.storage.statistics import Point
from autotune.units import GIB

HEIGHT = 280  # pixels
# Colours of series, and of the values for which none is left.
SERIES_COLOURS = ("blue.6", "orange.6", "teal.6", "red.6", "grape.6", "lime.7", "cyan.7", "pink.6")
OTHER_COLOUR = "gray.5"
OTHER_LABEL = "other values"
# Colours of the parts of a step.
PART_COLOURS = ("red.5", "yellow.5", "orange.5", "grape.5", "cyan.6", "lime.6", "blue.5", "gray.5")
NUMBER_AXIS = {"type": "number", "domain": ["auto", "auto"], "allowDataOverflow": False}


def best_so_far(points: Sequence[Point], started: datetime, ended: datetime) -> Component:
    """Return a chart of the highest throughput so far over the minutes of a run.

    Args:
        points: the trials that were faster than all before them, at least one.
        started: when the run began.
        ended: when the run ended, or its last trial so far.
    """
    data = [_at(point.finished_at, started, point.throughput) for point in points]
    data.append(_at(max(ended, points[-1].finished_at), started, points[-1].throughput))
    steps = {"curveType": "stepAfter", "withDots": len(points) < 60}
    return _line(data, "minutes", "Minutes since the run began", "Best so far", **steps)


def _line(
    data: Sequence[dict[str, float]], across: str, label: str, named: str, **style: Any
) -> Component:
    """Return a line chart of the key `speed` of `data`, in samples/s, over the key `across`."""
    return dmc.LineChart(
        data=data,
        dataKey=across,
        series=[{"name": "speed", "label": named, "color": SERIES_COLOURS[0]}],
        xAxisLabel=label,
        yAxisLabel="samples/s",
        xAxisProps=NUMBER_AXIS,
        yAxisProps={"domain": [0, "auto"], "width": 70},
        h=HEIGHT,
        **style,
    )


def _at(time: datetime, started: datetime, throughput: float) -> dict[str, float]:
    minutes = (time - started).total_seconds() / 60
    return {"minutes": round(minutes, 3), "speed": _short(throughput)}


def trade_off(points: Sequence[Point], front: Sequence[Point], knob: str | None) -> Component:
    """Return a chart of throughput against peak memory, coloured by a knob's value.

    Without a knob, the colour tells which trials are on the front: no other beats them in both.
    """
    known = {point.number: point for point in [*points, *front] if point.memory_bytes is not None}
    if not known:
        return placeholder("No trial with a known peak memory yet.")
    return dmc.ScatterChart(
        id="trade-off-chart",
        data=_series(list(known.values()), {point.number for point in front}, knob),
        dataKey={"x": "memory", "y": "throughput"},
        labels={"x": "Peak memory (GiB)", "y": "Samples per second"},
        xAxisLabel="Peak memory (GiB)",
        yAxisLabel="samples/s",
        xAxisProps=NUMBER_AXIS,
        yAxisProps={"domain": [0, "auto"], "width": 70},
        withLegend=True,
        h=HEIGHT + 40,
    )


def _series(points: Sequence[Point], front: set[int], knob: str | None) -> list[dict[str, Any]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(_group(point, front, knob), []).append(point)
    # There are only so many colours; the rarest values share one.
    named = sorted(groups, key=lambda name: -len(groups[name]))
    rest = [point for name in named[len(SERIES_COLOURS) :] for point in groups[name]]
    shown = [
        (name, groups[name], SERIES_COLOURS[i])
        for i, name in enumerate(named[: len(SERIES_COLOURS)])
    ]
    if rest:
        shown.append((OTHER_LABEL, rest, OTHER_COLOUR))
    return [
        {"name": name, "color": colour, "data": [_dot(point) for point in members]}
        for name, members, colour in shown
    ]


def _group(point: Point, front: set[int], knob: str | None) -> str:
    if knob is None:
        return "on the front" if point.number in front else "another is better"
    value = point.plan.values.get(knob)
    return f"{knob} does not apply" if value is None else f"{knob}={knob_value(value)}"


def _dot(point: Point) -> dict[str, float]:
    assert point.memory_bytes is not None
    memory = round(point.memory_bytes / GIB, 3)
    return {"memory": memory, "throughput": _short(point.throughput), "trial": point.number}


def windows(measured: Sequence[dict[str, Any]]) -> Component:
    """Return a chart of the throughput of each window over the seconds of measuring."""
    data, seconds = [], 0.0
    for window in measured:
        seconds += window["seconds"]
        data.append({"seconds": round(seconds, 3), "speed": _short(window["throughput"] or 0.0)})
    return _line(data, "seconds", "Seconds of measuring", "Window", curveType="linear")


def step_parts(named: Sequence[tuple[str, dict[str, float]]]) -> Component:
    """Return a chart with a bar for each plan, divided into the parts of its step.

    Args:
        named: `(plan, {part: share of 1})`; parts come in the order of the first plan with them.
    """
    parts = list(dict.fromkeys(part for _, shares in named for part in shares))
    data = [
        {"plan": name, **{part: round(100 * share, 1) for part, share in shares.items()}}
        for name, shares in named
    ]
    return dmc.BarChart(
        data=data,
        dataKey="plan",
        type="stacked",
        orientation="vertical",
        series=[
            {"name": part, "color": PART_COLOURS[i % len(PART_COLOURS)]}
            for i, part in enumerate(parts)
        ],
        xAxisLabel="% of a step",
        xAxisProps={"domain": [0, 100]},
        yAxisProps={"width": 90},
        withLegend=True,
        h=80 + 50 * len(named),
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
