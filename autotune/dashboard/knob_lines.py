"""The chart of all knobs at once: a line for each trial through the values of its plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash.development.base_component import Component

from autotune.dashboard.colours import LINE
from autotune.dashboard.dots import BASELINE, WINNER, RunDots
from autotune.dashboard.figure import Trace, chart
from autotune.report.words import knob_value
from autotune.search_space.plan import Plan, Value
from autotune.storage.dots import Dot

MAX_LINES = 60  # the fastest trials, and the baseline
MAX_KNOBS = 14
ROW = 44  # pixels of a knob
ABSENT = "-"
FAINTEST = 0.2  # opacity of the slowest trial's line


def knob_lines(run: RunDots) -> Component | None:
    """Return the chart; None where no two trials differ.

    A knob is a row with its values from left to right, the baseline's first. Lines are the
    stronger the faster.
    """
    fastest = sorted(run.measured, key=lambda dot: dot.throughput or 0.0)[-MAX_LINES:]
    values = _values(run.run.new.baseline, fastest)
    if not values:
        return None
    knobs = list(values)
    ranks = {name: number for number, name in enumerate(reversed(knobs))}
    best = max(dot.throughput or 0.0 for dot in fastest)
    return chart(
        [_line(run, dot, values, ranks, best) for dot in fastest],
        name="knob-lines-chart",
        label=f"The knobs of {len(fastest)} trials: {', '.join(knobs)}",
        height=80 + ROW * len(knobs),
        across={"range": [-0.08, 1.08], "showticklabels": False, "showgrid": False},
        upwards={
            "tickvals": list(ranks.values()),
            "ticktext": list(ranks),
            "range": [-0.5, len(knobs) - 0.3],
        },
        annotations=[
            _label(_at(position, len(texts)), ranks[knob], text)
            for knob, texts in values.items()
            for position, text in enumerate(texts)
        ],
        showlegend=False,
    )


def _values(baseline: Plan, dots: Sequence[Dot]) -> dict[str, list[str]]:
    """Return the texts of each differing knob's values: the baseline's, then the others."""
    knobs = list(dict.fromkeys(knob for dot in dots for knob in dot.plan))
    found: dict[str, list[str]] = {}
    for knob in knobs:
        values = {_text(dot, knob): dot.plan.values.get(knob) for dot in dots}
        if len(values) > 1:
            first = baseline.values.get(knob)
            found[knob] = sorted(
                values, key=lambda text: (values[text] != first, *_order(values[text]))
            )
    return dict(list(found.items())[:MAX_KNOBS])


def _text(dot: Dot, knob: str) -> str:
    value = dot.plan.values.get(knob)
    return ABSENT if value is None else knob_value(value)


def _order(value: Value | None) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _at(position: int, num_values: int) -> float:
    return position / (num_values - 1)


def _line(
    run: RunDots,
    dot: Dot,
    values: Mapping[str, Sequence[str]],
    ranks: Mapping[str, int],
    best: float,
) -> Trace:
    role = run.role(dot)
    marked = role in {BASELINE, WINNER}
    share = (dot.throughput or 0.0) / best if best else 0.0
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [_at(list(texts).index(_text(dot, k)), len(texts)) for k, texts in values.items()],
        "y": [ranks[knob] for knob in values],
        "line": {"color": role.colour if marked else LINE, "width": 3 if marked else 1.5},
        "marker": {"size": 6},
        "opacity": 1.0 if marked else FAINTEST + (1 - FAINTEST) * share,
        "hovertext": run.pointed(dot),
        "hoverinfo": "text",
        "customdata": [dot.number] * len(values),
    }


def _label(across: float, upwards: float, text: str) -> dict[str, Any]:
    return {
        "x": across,
        "y": upwards,
        "yshift": 12,
        "text": text,
        "showarrow": False,
        "font": {"size": 11},
    }
