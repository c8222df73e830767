"""The frame around all pages (menu, messages), and the routes from addresses to pages."""

import contextlib
import functools
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html, set_props
from dash.backends._fastapi import FastAPIDashServer
from dash.development.base_component import Component
from fastapi import FastAPI

from autotune.dashboard import parts
from autotune.dashboard.api import PREFIX
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.document import ASSETS, PageDocument, tab_title
from autotune.dashboard.extras import NO_EXTRAS, Extras, Page
from autotune.dashboard.pages import (
    compare,
    notes,
    plan_section,
    query,
    run,
    run_answers,
    runs,
    trends,
    trial,
)
from autotune.dashboard.problems import BUG_NOTE
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import AutotuneError, NotFoundError

logger = logging.getLogger(__name__)

# Text on colours has a contrast of at least 4.5: dark text where a colour's luminance is above the
# threshold, white text below it.
THEME = {
    "primaryColor": "blue",
    "primaryShade": {"light": 8, "dark": 8},
    "defaultRadius": "md",
    "autoContrast": True,
    "luminanceThreshold": 0.179,
}
# The choices that are kept in the address, by the function in the browser that keeps them.
KEPT: dict[str, list[Input | State]] = {
    "keep_colour": [Input("colour", "value")],
    "keep_columns": [Input("columns", "value")],
    "keep_filter": [Input("trials", "filterModel")],
    "keep_other": [Input("plan-other", "value")],
    "keep_sql": [Input("ask", "n_clicks"), State("sql", "value")],
}
MENU = (("Runs", "/"), ("Compare", "/compare"), ("Trends", "/trends"), ("Query", "/query"))


class _Server(FastAPIDashServer):
    """Dash's server without WebSockets, as pages poll."""

    websocket_capability = False


PAGES = (
    Page(pattern=r"/", build=runs.page, title=lambda _: "Runs"),
    Page(pattern=r"/runs/([^/]+)/?", build=run.page, title=run.title),
    Page(pattern=r"/runs/([^/]+)/trials/(\d+)/?", build=trial.page, title=trial.title),
    Page(pattern=r"/compare/?", build=compare.page, title=lambda _: "Compare"),
    Page(pattern=r"/trends/?", build=trends.page, title=lambda _: "Trends"),
    Page(pattern=r"/query/?", build=query.page, title=lambda _: "Query"),
)


def add_pages(server: FastAPI, source: Source, extras: Extras = NO_EXTRAS) -> list[str]:
    """Add the pages to the server; return the hashes of their scripts for the security policy."""
    pages = (*PAGES, *extras.pages)
    app = PageDocument(
        title_of=functools.partial(title_at, source, pages=pages),
        name="autotune",
        server=False,
        backend=_Server,
        assets_folder=str(ASSETS),
        title="autotune",
        update_title="",
        suppress_callback_exceptions=True,
        on_error=_show_error,
        use_async=True,
    )
    app.init_app(server)
    app.layout = _layout((*MENU, *extras.menu))
    in_browser = functools.partial(ClientsideFunction, "autotune")
    app.clientside_callback(
        in_browser("visit"),
        Output("visit", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
    )
    app.clientside_callback(in_browser("set_title"), Input("title", "data"))
    app.clientside_callback(
        in_browser("load_grid"), Output("grid-ready", "data"), Input("grid-wanted", "data")
    )
    for function, chosen in KEPT.items():
        app.clientside_callback(in_browser(function), *chosen, prevent_initial_call=True)
    callback_in_thread(
        app,
        Output("page", "children"),
        Output("problem", "children"),
        Output("title", "data"),
        Input("visit", "data"),
    )(functools.partial(_open_page, source, pages))
    for part in (run_answers, plan_section, notes, compare, query, runs, trends):
        part.add_callbacks(app, source)
    for add_callbacks in extras.callbacks:
        add_callbacks(app, source)
    return list(app.csp_hashes())


def _layout(entries: Sequence[tuple[str, str]]) -> Component:
    menu: list[Component] = [dcc.Link(name, href=href) for name, href in entries]
    menu.append(parts.server_link("API", f"{PREFIX}/docs"))
    bar = dmc.Group(
        [
            dcc.Link(dmc.Text("autotune", fw=700, size="lg"), href="/"),
            html.Nav(dmc.Group(menu, gap="md")),
            dmc.Box(
                dmc.ColorSchemeToggle(lightIcon="☀", darkIcon="☾", variant="default"), ml="auto"
            ),
        ],
        py="xs",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="visit"),
            dcc.Store(id="title", data="autotune"),
            html.Header(dmc.Container(bar, size="xl"), className="bar"),
            html.Main(
                dmc.Container(
                    [html.Div(id="problem", role="alert"), html.Div(_loading(), id="page")],
                    size="xl",
                )
            ),
        ],
        theme=THEME,
        defaultColorScheme="auto",
    )


def _loading() -> Component:
    return dmc.Text("Loading ...", c="dimmed")


def _open_page(
    source: Source, pages: Sequence[Page], told: dict[str, Any] | None
) -> tuple[Component, Component | None, str]:
    visit = Visit.of(told)
    title = tab_title(title_at(source, visit.path, pages))
    try:
        return page_at(source, visit, pages), None, title
    except AutotuneError as error:
        return parts.placeholder("There is nothing to show."), parts.alert(str(error)), title


def page_at(source: Source, visit: Visit, pages: Sequence[Page] = PAGES) -> Component:
    """Return the page at the address of a visit.

    Raises:
        NotFoundError: when there is no such page, run or trial.
    """
    for page in pages:
        if found := re.fullmatch(page.pattern, visit.path):
            return page.build(source, visit, *map(unquote, found.groups()))
    raise NotFoundError(f"there is no page {visit.path}; choose one from the menu above")


def title_at(source: Source, path: str, pages: Sequence[Page] = PAGES) -> str:
    """Return the heading of the page at a path; `autotune` where there is none."""
    for page in pages:
        if found := re.fullmatch(page.pattern, path):
            with contextlib.suppress(AutotuneError):
                return page.title(source, *map(unquote, found.groups()))
    return "autotune"


def _show_error(error: Exception) -> None:
    if not isinstance(error, AutotuneError):
        logger.error("a callback failed", exc_info=error)
    known = isinstance(error, AutotuneError)
    message = str(error) if known else f"{type(error).__name__}: {error}: {BUG_NOTE}"
    set_props("problem", {"children": parts.alert(message)})
