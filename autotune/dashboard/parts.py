"""Builds the components that several pages use."""

from collections.abc import Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

Child = Component | str | Sequence[Component | str] | None
STATE_COLOURS = {
    "running": "blue",
    "done": "green",
    "ok": "green",
    "interrupted": "yellow",
    "cancelled": "gray",
    "in flight": "blue",
    "queued": "indigo",
    "stopping": "yellow",
}
"""Colours of states of runs and jobs, and of trials' outcomes; others are failures, in red."""


def title(text: str, *beside: Component | None) -> Component:
    """Return a page's heading, with the components `beside` it."""
    return dmc.Group([dmc.Title(text, order=1, size="h2"), *beside], gap="sm", mb="md")


def section(heading: str, *children: Child, about: str = "") -> Component:
    """Return a framed section of a page; `about` is a line that explains it."""
    words = [dmc.Text(about, size="sm", c="dimmed", mb="sm")] if about else []
    inside = [dmc.Title(heading, order=2, size="h4", mb="xs"), *words, *children]
    return html.Section(dmc.Paper(inside, withBorder=True, p="md", mb="md"))


def tile(name: str, value: str, unit: str) -> Component:
    """Return a number with its name above and its unit, or a remark, below."""
    return dmc.Paper(
        [
            dmc.Text(name, size="sm", c="dimmed"),
            dmc.Text(value, size="xl", fw=700),
            dmc.Text(unit, size="xs", c="dimmed"),
        ],
        withBorder=True,
        p="sm",
    )


def badge(state: str) -> Component:
    """Return a run's state or a trial's outcome on its colour."""
    return dmc.Badge(
        state, color=STATE_COLOURS.get(state, "red"), variant="filled", miw="max-content"
    )


def link(text: str, href: str) -> Component:
    """Return a link to another page of the dashboard."""
    return dcc.Link(text, href=href)


def server_link(text: str, href: str, download: str | None = None) -> Component:
    """Return a link to an address that is no page, such as a file to download."""
    return html.A(text, href=href, download=download)


def facts(pairs: Iterable[tuple[str, Child]]) -> Component:
    """Return (name, value) pairs in two columns."""
    return html.Dl(
        [part for name, value in pairs for part in (html.Dt(name), html.Dd(value))],
        className="facts",
    )


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Child]], numeric: Sequence[str] = ()
) -> Component:
    """Return a small table; the `numeric` columns are aligned to the right."""
    classes = ["number" if column in numeric else "" for column in columns]
    heads = [html.Th(name, className=own) for name, own in zip(columns, classes, strict=True)]
    # Plain HTML, as hundreds of Mantine's cells take the browser half a second.
    body = [
        html.Tr([html.Td(cell, className=own) for cell, own in zip(row, classes, strict=True)])
        for row in rows
    ]
    whole = html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="plain")
    return html.Div(whole, className="scrolls")


def side_by_side(heads: Sequence[Component], rows: Iterable[Sequence[str]]) -> Component:
    """Return a table with a column below each head; a row begins with its name.

    Values that differ are bold.
    """
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(""), *(dmc.TableTh(head) for head in heads)]))
    return dmc.TableScrollContainer(
        dmc.Table(
            [head, dmc.TableTbody([_compared_line(row) for row in rows])], verticalSpacing=4
        ),
        minWidth=200 + 160 * len(heads),
    )


def _compared_line(row: Sequence[str]) -> Component:
    name, *values = row
    differ = len(set(values)) > 1
    return dmc.TableTr(
        [
            dmc.TableTh(name, c="dimmed", fw=400),
            *(dmc.TableTd(value, fw=700 if differ else 400) for value in values),
        ]
    )


def range_bar(low: float, mean: float, high: float, best: float) -> Component:
    """Return a bar from `low` to `high` samples/s with a mark at `mean`, on a scale to `best`."""

    def share(value: float) -> str:
        return f"{100 * value / best:.2f}%" if best else "0%"

    return html.Div(
        [
            html.Div(style={"left": share(low), "width": share(high - low)}),
            html.Span(style={"left": share(mean)}),
        ],
        className="range",
        title=f"from {low:.4g} to {high:.4g}, mean {mean:.4g} samples/s",
    )


def lines(texts: Iterable[str]) -> list[Component | str]:
    """Return each text on a line of its own."""
    return [html.Div(text) for text in texts]


def text_block(text: str) -> Component:
    """Return a log or an error as it is, with its line breaks; nothing in it is markup."""
    return dmc.Paper(
        html.Pre(text, className="text"), bg="var(--mantine-color-default-hover)", p="sm"
    )


def commands(lines: Sequence[str]) -> Component:
    """Return command lines with a button that copies them."""
    text = "\n".join(lines)
    copy = dmc.Group(dmc.CopyButton(value=text, children="Copy", size="xs"))
    return dmc.Stack([text_block(text), copy], gap="xs")


def alert(message: str, heading: str = "The request failed", colour: str = "red") -> Component:
    """Return a message in a coloured box, by default an error."""
    return dmc.Alert(
        message, title=heading, color=colour, mb="md", withCloseButton=True, className="note"
    )


def grid_wanted() -> Component:
    """Return what makes the browser load the script of tables; then `grid-ready` becomes true."""
    return html.Div([dcc.Store(id="grid-wanted", data=True), dcc.Store(id="grid-ready")])


def notes(heading: str, items: Iterable[str], colour: str) -> Component:
    """Return sentences that must be read, one below the other in a coloured box."""
    listed = dmc.List([dmc.ListItem(item) for item in items], size="sm")
    return dmc.Alert(listed, title=heading, color=colour, mt="md", className="note")


def placeholder(text: str) -> Component:
    """Return a grey sentence that stands in place of missing content."""
    return dmc.Text(text, c="dimmed", size="sm")


def choices(values: Iterable[str]) -> list[dict[str, Any]]:
    """Return the options of a select box, each its own label."""
    return [{"value": value, "label": value} for value in values]
