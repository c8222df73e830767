"""The web application: pages, API and Optuna's own dashboard behind one guard."""

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from autotune import __version__
from autotune.dashboard.api import PREFIX, Api
from autotune.dashboard.guard import Guard
from autotune.dashboard.optuna_pages import OPTUNA_PATHS, OptunaPages
from autotune.dashboard.problems import add_handlers
from autotune.dashboard.shell import add_pages
from autotune.dashboard.source import Source

DOCS = f"{PREFIX}/docs"
DOCS_FILES = f"{PREFIX}/docs-files"
OWN = "default-src 'self'; img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'; "
OWN += "base-uri 'none'; form-action 'self'; style-src 'self' 'unsafe-inline'; "
# Pages of others that we serve hold scripts of their own in the page; nothing else may be loaded.
OF_OTHERS = OWN + "script-src 'self' 'unsafe-inline' 'unsafe-eval'; worker-src 'self' blob:"


def make_app(url: str | None, token: str | None = None) -> ASGIApp:
    """Return the application over the store at `url`, as for `open_store`.

    Args:
        url: a file or database URL; the store may still be missing, pages say so.
        token: what viewers must know; None: only this very machine may look.
    """
    app = FastAPI(
        title="autotune",
        version=__version__,
        summary="Runs, trials and plans of a store; everything here only reads.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)
    source = Source(url)
    _add_docs(app)
    app.include_router(Api(source).router)
    OptunaPages(source).add_to(app)
    hashes = add_pages(app, source)
    return Guard(app, token=token, policy=_policy(hashes))


def _add_docs(app: FastAPI) -> None:
    """Add the OpenAPI page; its script comes from an installed package, not from elsewhere."""
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


def _policy(hashes: list[str]) -> Callable[[str], str]:
    own = f"{OWN}script-src 'self' {' '.join(hashes)}"

    def policy(path: str) -> str:
        return OF_OTHERS if path.startswith((DOCS, *OPTUNA_PATHS)) else own

    return policy
