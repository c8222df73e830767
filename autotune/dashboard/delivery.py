"""How files travel to the browser: compressed, and kept there where their address names them."""

import re

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SMALLEST_BYTES = 500
"""Shorter responses are sent as they are."""
LEVEL = 6
"""zlib's level; 9 takes twice as long and saves 0.5 % of our scripts."""
KEEP_FOREVER = "private, max-age=31536000, immutable"
KEEP_AN_HOUR = "private, max-age=3600"
"""For scripts that Dash loads later, whose addresses stay when a package is upgraded."""
SCRIPTS = "/_dash-component-suites/"
# Addresses that change with what they name: Dash's scripts, and our assets with their version.
NAMED_SCRIPT = re.compile(r"\.v\d[\w.+-]*m\d+\.")
NAMED_ASSET = re.compile(rb"(^|&)v=\w+")


def add_delivery(app: FastAPI) -> None:
    """Compress responses, and let browsers keep files whose address changes with them."""
    app.add_middleware(_Caching)
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST_BYTES, compresslevel=LEVEL)


class _Caching:
    """ASGI middleware that tells browsers to keep files."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rule = _rule(scope) if scope["type"] == "http" else None

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["Cache-Control"] = str(rule)
            await send(message)

        await self._app(scope, receive, send if rule is None else sent)


def _rule(scope: Scope) -> str | None:
    """Return how long a browser may keep what an address names; None: not at all."""
    path = scope["path"]
    if path.startswith(SCRIPTS):
        return KEEP_FOREVER if NAMED_SCRIPT.search(path) else KEEP_AN_HOUR
    is_named = path.startswith("/assets/") and NAMED_ASSET.search(scope["query_string"])
    return KEEP_FOREVER if is_named else None
