"""Charts, as Mantine draws them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard.parts import nothing
from autotune.storage.statistics import Point

HEIGHT = 280
GIB = 2**30
SERIES = ("blue.6", "orange.6", "teal.6", "red.6", "grape.6", "lime.7", "cyan.7", "pink.6")
OTHER = "gray.5"
OTHERS = "other values"
SEGMENTS = ("red.5", "yellow.5", "orange.5", "grape.5", "cyan.6", "lime.6", "blue.5", "gray.5")
NUMBER_AXIS = {"type": "number", "domain": ["auto", "auto"], "allowDataOverflow": False}


def best_so_far(points: Sequence[Point], started: datetime, ended: datetime) -> Component:
    """Return throughput of the fastest trial over minutes since the run began.

    Args:
        points: at least one; each was faster than all before it.
        started: when the run began.
        ended: when it ended, or the last trial so far.
    """
    data = [_at(point.finished_at, started, point.throughput) for point in points]
    data.append(_at(max(ended, points[-1].finished_at), started, points[-1].throughput))
    steps = {"curveType": "stepAfter", "withDots": len(points) < 60}
    return _line(data, "minutes", "Minutes since the run began", "Best so far", **steps)


def _line(
    data: Sequence[dict[str, float]], across: str, label: str, named: str, **looks: Any
) -> Component:
    """Return samples per second (the key `speed` of `data`) over the key `across`."""
    return dmc.LineChart(
        data=data,
        dataKey=across,
        series=[{"name": "speed", "label": named, "color": SERIES[0]}],
        xAxisLabel=label,
        yAxisLabel="samples/s",
        xAxisProps=NUMBER_AXIS,
        yAxisProps={"domain": [0, "auto"], "width": 70},
        h=HEIGHT,
        **looks,
    )


def _at(time: datetime, started: datetime, throughput: float) -> dict[str, float]:
    minutes = (time - started).total_seconds() / 60
    return {"minutes": round(minutes, 3), "speed": _short(throughput)}


def trade_off(points: Sequence[Point], front: Sequence[Point], knob: str | None) -> Component:
    """Return throughput against peak memory, coloured by a knob, or by being on the front."""
    known = {point.number: point for point in [*points, *front] if point.memory_bytes is not None}
    if not known:
        return nothing("No trial with a known peak memory yet.")
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
    # Colours run out; the rarest values share one.
    named = sorted(groups, key=lambda name: -len(groups[name]))
    rest = [point for name in named[len(SERIES) :] for point in groups[name]]
    shown = [(name, groups[name], SERIES[i]) for i, name in enumerate(named[: len(SERIES)])]
    if rest:
        shown.append((OTHERS, rest, OTHER))
    return [
        {"name": name, "color": colour, "data": [_dot(point) for point in members]}
        for name, members, colour in shown
    ]


def _group(point: Point, front: set[int], knob: str | None) -> str:
    if knob is None:
        return "nothing beats it" if point.number in front else "another is better"
    return f"{knob}={point.plan.get(knob, 'does not apply')}"


def _dot(point: Point) -> dict[str, float]:
    assert point.memory_bytes is not None
    memory = round(point.memory_bytes / GIB, 3)
    return {"memory": memory, "throughput": _short(point.throughput), "trial": point.number}


def windows(measured: Sequence[dict[str, Any]]) -> Component:
    """Return the throughput of each window of a trial over the seconds of measuring."""
    data, seconds = [], 0.0
    for window in measured:
        seconds += window["seconds"]
        data.append({"seconds": round(seconds, 3), "speed": _short(window["throughput"] or 0.0)})
    return _line(data, "seconds", "Seconds of measuring", "Window", curveType="linear")


def time_of_step(named: Sequence[tuple[str, dict[str, float]]]) -> Component:
    """Return how a step's time divides, a bar for each plan; shares are of 1.

    Args:
        named: `(plan, {part: share})`; parts keep the order of the first plan that has them.
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
            {"name": part, "color": SEGMENTS[i % len(SEGMENTS)]} for i, part in enumerate(parts)
        ],
        xAxisLabel="% of a step",
        xAxisProps={"domain": [0, 100]},
        yAxisProps={"width": 90},
        withLegend=True,
        h=80 + 50 * len(named),
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
