"""The chart of why a winner is faster: bars from the baseline to the winner."""

from typing import Any

from dash.development.base_component import Component

from autotune.dashboard import colours
from autotune.dashboard.figure import chart
from autotune.report.why import Share, Why
from autotune.report.words import samples
from autotune.search_space.plan import spell
from autotune.units import GIB

ROW = 46  # pixels of a bar
ROOM = 1.25  # of the axis over the longest bar, for the words beside it
MAX_NAMED = 3  # settings that the label of a bar names
BASELINE, WINNER = "baseline", "winner"


def waterfall(why: Why) -> Component:
    """Return the chart: the baseline, a bar for each share, and the winner, from top to bottom."""
    scale = GIB if why.is_memory else 1.0
    figures = _figures(why)
    rows = len(figures) + 1
    shares = [
        _bar(share, figures[number] / scale, figures[number + 1] / scale, why)
        for number, share in enumerate(why.shares)
    ]
    ends = {
        "type": "bar",
        "orientation": "h",
        "y": [BASELINE, WINNER],
        "x": [why.baseline / scale, why.winner / scale],
        "text": [_text(why, why.baseline), _text(why, why.winner)],
        "textposition": "auto",
        "marker": {"color": [colours.BASELINE, colours.WINNER]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    names = [BASELINE, *(_label(share) for share in why.shares), WINNER]
    unit = "GiB of peak memory" if why.is_memory else "samples/s"
    return chart(
        [ends, *shares],
        name="why-chart",
        label=(
            f"From {_text(why, why.baseline)} of the baseline to {_text(why, why.winner)} of the "
            f"winner in {unit}; the table below has the numbers"
        ),
        height=70 + ROW * rows,
        across={"title": {"text": unit}, "range": [0, ROOM * max(figures) / scale]},
        upwards={
            "categoryorder": "array",
            "categoryarray": names,
            "autorange": "reversed",
            "showgrid": False,
        },
        barmode="overlay",
        bargap=0.25,
        showlegend=False,
    )


def _figures(why: Why) -> list[float]:
    """Return the figure before the first share, and after each."""
    found = [why.baseline]
    for share in why.shares:
        found.append(found[-1] * share.factor)
    return found


def _bar(share: Share, before: float, after: float, why: Why) -> dict[str, Any]:
    gains = (after > before) is not why.is_memory
    colour = colours.BETTER if gains else colours.WORSE
    known = share.low is not None and share.high is not None
    span = f" ({share.low:.2f} to {share.high:.2f})" if known else ""
    return {
        "type": "bar",
        "orientation": "h",
        "y": [_label(share)],
        "base": [min(before, after)],
        "x": [abs(after - before)],
        "text": ["noise" if share.is_noise else f"x {share.factor:.2f}"],
        "textposition": "auto",
        "cliponaxis": False,
        "marker": {"color": colours.TRIAL if share.is_noise else colour},
        "hovertext": [_pointed(share, span)],
        "hoverinfo": "text",
    }


def _pointed(share: Share, span: str) -> str:
    lines = [f"{knob}={spell(value)}" for knob, value in share.settings.items()]
    worth = "within noise" if share.is_noise else "worth"
    return "<br>".join([*lines, f"{worth}: x {share.factor:.2f}{span}", f"trial {share.trial}"])


def _label(share: Share) -> str:
    """Return the settings of a share, a few of them each on its line, and how many others."""
    named = [f"{knob}={spell(value)}" for knob, value in share.settings.items()]
    rest = len(named) - MAX_NAMED
    shown = named[:MAX_NAMED] if rest <= 0 else [*named[: MAX_NAMED - 1], f"and {rest + 1} more"]
    return "<br>".join(shown)


def _text(why: Why, figure: float) -> str:
    return f"{figure / GIB:.2f}" if why.is_memory else samples(figure)
