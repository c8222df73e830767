"""The frame around all pages (menu, messages), and the routes from addresses to pages."""

import functools
import logging
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html, set_props
from dash.backends._fastapi import FastAPIDashServer
from dash.development.base_component import Component
from fastapi import FastAPI

from autotune.dashboard import parts
from autotune.dashboard.api import PREFIX
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.pages import compare, query, run, run_answers, runs, trial
from autotune.dashboard.problems import BUG_NOTE
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import AutotuneError, NotFoundError

logger = logging.getLogger(__name__)

# The HTML of every page; Dash fills in the names between the signs.
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" href="/assets/icon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>
"""
# Runs in the browser, and returns the address of the page and the viewer's time zone.
REPORT_VISIT = """(path, search) => ({
  path, search, zone: Intl.DateTimeFormat().resolvedOptions().timeZone
})"""
THEME = {"primaryColor": "blue", "defaultRadius": "md"}
MENU = (("Runs", "/"), ("Compare", "/compare"), ("Query", "/query"))


class _Server(FastAPIDashServer):
    """Dash's server without WebSockets, as pages poll."""

    websocket_capability = False


# The pages by the pattern of their address. Each function takes the source, the visit and the
# groups of the pattern.
PAGES: tuple[tuple[str, Callable[..., Component]], ...] = (
    (r"/", runs.page),
    (r"/runs/([^/]+)/?", run.page),
    (r"/runs/([^/]+)/trials/(\d+)/?", trial.page),
    (r"/compare/?", compare.page),
    (r"/query/?", query.page),
)


def add_pages(server: FastAPI, source: Source) -> list[str]:
    """Add the pages to the server; return the hashes of their scripts for the security policy."""
    app = Dash(
        "autotune",
        server=False,
        backend=_Server,
        assets_folder=str(files("autotune.dashboard") / "assets"),
        title="autotune",
        update_title="",
        index_string=INDEX,
        suppress_callback_exceptions=True,
        on_error=_show_error,
        use_async=True,
    )
    app.init_app(server)
    app.layout = _layout()
    app.clientside_callback(
        REPORT_VISIT,
        Output("visit", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
    )
    callback_in_thread(
        app, Output("page", "children"), Output("problem", "children"), Input("visit", "data")
    )(functools.partial(_open_page, source))
    for page in (run_answers, compare, query):
        page.add_callbacks(app, source)
    return list(app.csp_hashes())


def _layout() -> Component:
    menu: list[Component] = [dcc.Link(name, href=href) for name, href in MENU]
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


def _open_page(source: Source, told: dict[str, Any] | None) -> tuple[Component, Component | None]:
    visit = Visit.of(told)
    try:
        return page_at(source, visit), None
    except AutotuneError as error:
        return parts.placeholder("There is nothing to show."), parts.alert(str(error))


def page_at(source: Source, visit: Visit) -> Component:
    """Return the page at the address of a visit.

    Raises:
        NotFoundError: when there is no such page, run or trial.
    """
    for pattern, page in PAGES:
        if found := re.fullmatch(pattern, visit.path):
            return page(source, visit, *map(unquote, found.groups()))
    raise NotFoundError(f"there is no page {visit.path}; choose one from the menu above")


def _show_error(error: Exception) -> None:
    if not isinstance(error, AutotuneError):
        logger.error("a callback failed", exc_info=error)
    known = isinstance(error, AutotuneError)
    message = str(error) if known else f"{type(error).__name__}: {error}: {BUG_NOTE}"
    set_props("problem", {"children": parts.alert(message)})
