"""Builds the web application: pages, JSON API and Optuna's dashboard, behind one guard."""

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from autotune import __version__
from autotune.dashboard.api import PREFIX, Api
from autotune.dashboard.delivery import add_delivery
from autotune.dashboard.extras import NO_EXTRAS, Extras
from autotune.dashboard.guard import Gate, Guard, gate_of
from autotune.dashboard.optuna_pages import OPTUNA_PATHS, OptunaPages
from autotune.dashboard.problems import add_handlers
from autotune.dashboard.shell import add_pages
from autotune.dashboard.source import Source

DOCS = f"{PREFIX}/docs"
DOCS_FILES = f"{PREFIX}/docs-files"
# Content-Security-Policies: of our own pages, and of pages that FastAPI and Optuna bring, whose
# HTML holds scripts. Neither may load anything from another server.
OWN_POLICY = (
    "default-src 'self'; img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'; "
)
OWN_POLICY += "base-uri 'none'; form-action 'self'; style-src 'self' 'unsafe-inline'; "
THIRD_PARTY_POLICY = (
    OWN_POLICY + "script-src 'self' 'unsafe-inline' 'unsafe-eval'; worker-src 'self' blob:"
)


def make_app(url: str | None, token: str | None = None) -> ASGIApp:
    """Return the application that shows the store at `url`.

    Args:
        url: as for `open_store`. The store may be missing; pages then say so.
        token: what viewers must give; None: only viewers on this machine are answered.
    """
    gate = None if token is None else gate_of(token)
    return build_app(Source(url), gate, "Runs, trials and plans of a store. All routes only read.")


def build_app(
    source: Source, gate: Gate | None, summary: str, extras: Extras = NO_EXTRAS
) -> ASGIApp:
    """Return the application that shows the store of `source`, with what `extras` adds to it.

    Args:
        source: opens the store.
        gate: which tokens are let in; None: only viewers on this machine are answered.
        summary: a line for the page that documents the API.
        extras: routes and pages of another program.
    """
    app = FastAPI(
        title="autotune",
        version=__version__,
        summary=summary,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)
    _add_docs(app)
    for router in extras.routers:
        app.include_router(router)
    app.include_router(Api(source).router)
    OptunaPages(source).add_to(app)
    hashes = add_pages(app, source, extras)
    add_delivery(app)
    return Guard(app, gate=gate, policy=_policy_by_path(hashes))


def _add_docs(app: FastAPI) -> None:
    """Add the page that documents the API; its script comes from an installed package."""
    app.mount(DOCS_FILES, StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get(DOCS, include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=f"{PREFIX}/openapi.json",
            title="autotune API",
            swagger_js_url=f"{DOCS_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{DOCS_FILES}/swagger-ui.css",
            swagger_favicon_url="/assets/icon.svg",
        )


def _policy_by_path(hashes: list[str]) -> Callable[[str], str]:
    own = f"{OWN_POLICY}script-src 'self' {' '.join(hashes)}"

    def policy(path: str) -> str:
        return THIRD_PARTY_POLICY if path.startswith((DOCS, *OPTUNA_PATHS)) else own

    return policy
