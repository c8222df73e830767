"""The page of what workloads gave over commits and dates."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import colours, parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.colours import colour_of, symbol_of
from autotune.dashboard.figure import Trace, chart
from autotune.dashboard.source import Source
from autotune.dashboard.trend import Line, Subject, trends_of, versions, when
from autotune.dashboard.visit import Visit
from autotune.errors import NotFoundError
from autotune.report.words import UNKNOWN, gib, knob_value, samples
from autotune.storage.trends import TrendPoint
from autotune.units import GIB

COLUMNS = ("Workload", "Device", "Devices", "Points", "Newest (samples/s)", "Since the one before")
POINT_COLUMNS = (
    "",
    "Commit",
    "Message",
    "Committed",
    "Measured",
    "Samples/s",
    "95 % interval",
    "Memory (GiB)",
    "First step (s)",
)
ABOUT_LEVELS = (
    "A dotted line stands where a new level is likely to begin. A cross marks what was slower "
    "than allowed."
)
Numbered = list[tuple[int, Line, TrendPoint]]
Value = Callable[[TrendPoint], float | None]


def page(source: Source, visit: Visit) -> Component:
    """Return the page of all trends, or of the one that the address names.

    Such as `/trends?workload=model.py&device=NVIDIA+H200&ranks=1`.
    """
    with source.store() as store:
        trends = trends_of(store)
    if "workload" not in visit.query:
        return dmc.Box([parts.title("Trends"), _all(trends)])
    wanted = {name: visit.query.get(name) for name in ("workload", "device", "ranks")}
    for subject, lines in trends.items():
        if subject.query == wanted:
            return _one(subject, lines, visit)
    raise NotFoundError(
        f"there is no trend of {wanted['workload']} on {wanted['device']}; choose one from Trends"
    )


def add_callbacks(app: Dash, source: Source) -> None:
    """Make the choice of two points a part of the address, so that it can be shared."""
    callback_in_thread(
        app,
        Output("address", "href", allow_duplicate=True),
        Input("trend-a", "value"),
        Input("trend-b", "value"),
        State("visit", "data"),
        prevent_initial_call=True,
    )(_address)


def _address(first: str | None, second: str | None, told: dict[str, Any]) -> Any:
    asked = Visit.of(told).query
    chosen = {**asked, "a": first or "", "b": second or ""}
    return no_update if chosen == asked else f"/trends?{urlencode(chosen)}"


def _all(trends: dict[Subject, list[Line]]) -> Component:
    if not trends:
        command = "autotune check model.py --plan plan.yaml --against main"
        return parts.section(
            "Nothing was run or checked yet",
            parts.commands([command, "autotune run model.py --budget 15m"]),
        )
    rows = [_subject_row(subject, lines) for subject, lines in trends.items()]
    about = "What `autotune check` measured, by workload and device."
    table = html.Div(parts.table(COLUMNS, rows, COLUMNS[2:]), className="runs")
    return parts.section("Workloads", table, about=about)


def _subject_row(subject: Subject, lines: Sequence[Line]) -> list[Any]:
    newest = lines[0].points
    change = UNKNOWN
    if len(newest) > 1:
        change = f"{100 * (newest[-1].throughput / newest[-2].throughput - 1):+.1f} %"
    return [
        parts.link(subject.workload, f"/trends?{urlencode(subject.query)}"),
        subject.device,
        str(subject.num_ranks),
        str(sum(len(line.points) for line in lines)),
        samples(newest[-1].throughput),
        change,
    ]


def _one(subject: Subject, lines: Sequence[Line], visit: Visit) -> Component:
    in_order = sorted(
        ((line, point) for line in lines for point in line.points), key=lambda one: when(one[1])
    )
    numbered = [(number, *one) for number, one in enumerate(in_order, 1)]
    return dmc.Box(
        [
            parts.title(f"Trend of {subject.workload}", dmc.Text(subject.device, c="dimmed")),
            parts.section("Throughput", _throughput(lines), about=ABOUT_LEVELS),
            dmc.SimpleGrid(
                [
                    parts.section("Peak memory", _memory(lines)),
                    parts.section("First step", _first_steps(lines)),
                ],
                cols={"base": 1, "md": 2},
            ),
            parts.section("Compare two points", *_compared(numbered, visit)),
            parts.section("All points", _points(numbered, visit)),
        ]
    )


def _throughput(lines: Sequence[Line]) -> Component:
    starts = [_start(line, at) for line in lines for at in line.starts]
    traces = [_trace(line, lambda p: p.throughput) | _interval_bars(line) for line in lines]
    return _chart("throughput", "samples/s", traces, shapes=starts)


def _memory(lines: Sequence[Line]) -> Component:
    def in_gib(point: TrendPoint) -> float | None:
        return None if point.memory_bytes is None else point.memory_bytes / GIB

    return _chart("memory", "GiB", [_trace(line, in_gib) for line in lines])


def _first_steps(lines: Sequence[Line]) -> Component:
    traces = [_trace(line, lambda point: point.first_step_s) for line in lines]
    return _chart("first-step", "seconds", traces)


def _chart(name: str, unit: str, traces: Sequence[Trace], **layout: Any) -> Component:
    return chart(
        traces,
        name=f"trend-{name}",
        label=f"{name} in {unit} over the dates of commits",
        across={"type": "date"},
        upwards={"title": {"text": unit}, "rangemode": "tozero"},
        **layout,
    )


def _trace(line: Line, value: Value) -> Trace:
    points, colour = line.points, colour_of(line.name)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.name,
        "showlegend": True,
        "x": [when(point).isoformat() for point in points],
        "y": [value(point) for point in points],
        "hovertext": [_pointed(point) for point in points],
        "hoverinfo": "text",
        "line": {"color": colour, "width": 1.5},
        "marker": {
            "size": 9,
            "symbol": ["x" if point.is_drop else symbol_of(line.name) for point in points],
            "color": [colours.WORSE if point.is_drop else colour for point in points],
        },
    }


def _interval_bars(line: Line) -> Trace:
    points = line.points
    above = [(p.throughput_high or p.throughput) - p.throughput for p in points]
    below = [p.throughput - (p.throughput_low or p.throughput) for p in points]
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {"error_y": bars}


def _pointed(point: TrendPoint) -> str:
    told = f"{_commit(point)} {point.commit_subject or ''}".strip()
    drop = "<br>slower than allowed" if point.is_drop else ""
    return f"{told}<br>{samples(point.throughput)} samples/s{drop}"


def _start(line: Line, position: int) -> dict[str, Any]:
    """Return a dotted line between the last point of a level and the first of the next."""
    before, first = (when(line.points[at]) for at in (position - 1, position))
    at = (before + (first - before) / 2).isoformat()
    return {
        "type": "line",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {"color": colour_of(line.name), "dash": "dot", "width": 1.5},
    }


def _compared(numbered: Numbered, visit: Visit) -> list[Component]:
    if len(numbered) < 2:
        return [parts.placeholder("There is one point so far.")]
    known = {str(number): point for number, _, point in numbered}
    first = visit.query.get("a") if visit.query.get("a") in known else str(len(numbered) - 1)
    second = visit.query.get("b") if visit.query.get("b") in known else str(len(numbered))
    options = [{"value": n, "label": f"{n}: {_commit(point)}"} for n, point in known.items()]
    boxes = [
        dmc.Select(id=name, label=label, data=options, value=value, allowDeselect=False)
        for name, label, value in (("trend-a", "From", first), ("trend-b", "To", second))
    ]
    chosen = [known[str(first)], known[str(second)]]
    heads: list[Component] = [dmc.Text(_commit(point), fw=700) for point in chosen]
    return [dmc.Group(boxes, mb="md"), parts.side_by_side(heads, _rows(chosen, visit))]


def _rows(points: Sequence[TrendPoint], visit: Visit) -> list[list[str]]:
    shown: list[tuple[str, Callable[[TrendPoint], str]]] = [
        ("Message", lambda point: point.commit_subject or UNKNOWN),
        ("Committed", lambda point: _time(visit, point)),
        ("Samples/s", lambda point: samples(point.throughput)),
        ("95 % interval", _interval),
        ("Peak memory (GiB)", lambda point: gib(point.memory_bytes)),
        ("First step (s)", _first_step),
        ("Processes", lambda point: str(point.num_processes)),
    ]
    rows = [[name, *map(show, points)] for name, show in shown]
    names = dict.fromkeys(name for point in points for name in versions(point))
    rows += [[name, *(str(versions(p).get(name, UNKNOWN)) for p in points)] for name in names]
    knobs = dict.fromkeys(knob for point in points for knob in point.plan)
    rows += [[knob, *(knob_value(p.plan.values.get(knob)) for p in points)] for knob in knobs]
    return rows


def _points(numbered: Numbered, visit: Visit) -> Component:
    rows = [
        [
            str(number),
            _commit(point),
            point.commit_subject or UNKNOWN,
            _time(visit, point),
            visit.time(point.measured_at.isoformat()),
            samples(point.throughput),
            _interval(point),
            gib(point.memory_bytes),
            _first_step(point),
        ]
        for number, _, point in reversed(numbered)
    ]
    return html.Div(parts.table(POINT_COLUMNS, rows, POINT_COLUMNS[5:]), className="runs")


def _commit(point: TrendPoint) -> str:
    if point.commit_hash is None:
        return "no commit"
    return point.commit_hash[:9] + ("+" if point.is_changed else "")


def _time(visit: Visit, point: TrendPoint) -> str:
    return visit.time(point.committed_at.isoformat() if point.committed_at else None)


def _interval(point: TrendPoint) -> str:
    if point.throughput_low is None or point.throughput_high is None:
        return UNKNOWN
    return f"{samples(point.throughput_low)} to {samples(point.throughput_high)}"


def _first_step(point: TrendPoint) -> str:
    return UNKNOWN if point.first_step_s is None else f"{point.first_step_s:.1f}"
