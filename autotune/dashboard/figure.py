"""The frame that all charts share; figures are plain values, as Plotly takes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from autotune.dashboard.colours import GRID

HEIGHT = 320  # pixels
Trace = dict[str, Any]


def chart(
    traces: Sequence[Trace],
    *,
    label: str,
    name: str,
    across: Mapping[str, Any] | None = None,
    upwards: Mapping[str, Any] | None = None,
    height: int = HEIGHT,
    **layout: Any,
) -> Component:
    """Return a chart.

    Args:
        traces: what it draws, as Plotly takes it.
        label: what it shows, for those who cannot see it.
        name: the component's id.
        across: what the axis of x has beside what all have, such as its title.
        upwards: the same for the axis of y.
        height: in pixels.
        layout: what the layout has beside what all have.
    """
    figure = {
        "data": list(traces),
        "layout": {
            "autosize": True,
            "height": height,
            "margin": {"l": 56, "r": 12, "t": 12, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12},
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": "#212529", "font": {"color": "#fff"}, "align": "left"},
            "dragmode": False,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "xaxis": {**_AXIS, **(across or {})},
            "yaxis": {**_AXIS, **(upwards or {})},
            **layout,
        },
    }
    graph = dcc.Graph(
        id=name,
        figure=figure,
        config={"displayModeBar": False, "responsive": True},
        style={"height": f"{height}px"},
    )
    return html.Figure([graph, html.Figcaption(label, className="unseen")], className="chart")


_AXIS = {
    "automargin": True,
    "fixedrange": True,
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": GRID,
    "title": {"standoff": 8},
}


def line_at(value: float, words: str, colour: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a dashed line across the chart at a height, and its words at the right end."""
    shape = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": colour, "dash": "dash", "width": 1.5},
    }
    note = {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": value,
        "yanchor": "bottom",
        "text": words,
        "showarrow": False,
    }
    return shape, note
