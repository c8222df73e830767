"""Decides which requests are answered: by the token, and by the page that sends them.

Without a token, only requests whose Host is this machine are answered. That stops DNS rebinding:
a page of another server whose name is made to resolve to this machine sends that name as Host.
With a token, its cookie stops the same, as the browser does not send it to another name.
"""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.dashboard.problems import error_response

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Values of the header Sec-Fetch-Site for requests from pages of other servers.
OTHER_SITES = ("cross-site", "same-site")
# Sent with every response.
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Which tokens are let in.

    Attributes:
        admits: returns whether a text is a token that is valid now.
        how: where to get one, for the message to those without.
    """

    admits: Callable[[str], Awaitable[bool]]
    how: str


def gate_of(token: str) -> Gate:
    """Return the gate that lets in one token."""

    async def admits(given: str) -> bool:
        return hmac.compare_digest(given.encode(), token.encode())

    return Gate(
        admits=admits, how="open the address that `autotune dashboard` printed, with ?token=..."
    )


class Guard:
    """An ASGI application that passes allowed requests on to another one.

    Args:
        app: the application to guard.
        gate: which tokens are let in; None: all requests to this machine by its own names are.
        policy: returns the Content-Security-Policy for a path.
    """

    def __init__(self, app: ASGIApp, *, gate: Gate | None, policy: Callable[[str], str]) -> None:
        self._app = app
        self._gate = gate
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on, and refuse any other."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = await self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, self._with_headers(scope["path"], send))

    async def _refusal(self, request: Request) -> Response | None:
        if self._gate is None and request.url.hostname not in LOOPBACK:
            return error_response(
                403,
                f"this server answers only requests to {', '.join(LOOPBACK)}, not to "
                f"{request.url.hostname!r}; for other machines, start it with --host, which "
                "asks for a token",
            )
        if _is_of_another_site(request):
            return error_response(
                403,
                "a page of another site sent this request; open the address directly instead",
            )
        return None if self._gate is None else await self._check_token(self._gate, request)

    async def _check_token(self, gate: Gate, request: Request) -> Response | None:
        cookie = f"autotune_{request.url.port or 80}"
        token = request.query_params.get("token")
        if token is not None and await gate.admits(token):
            response = RedirectResponse(_without_token(request.url), 303)
            response.set_cookie(cookie, token, httponly=True, samesite="lax")
            return response
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        known = bearer if scheme.lower() == "bearer" else request.cookies.get(cookie)
        if known is not None and await gate.admits(known):
            return None
        return error_response(
            401,
            f"the request has no valid token; {gate.how}, or send the token as "
            "`Authorization: Bearer ...`",
        )

    def _with_headers(self, path: str, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**HEADERS, "Content-Security-Policy": self._policy(path)})
            await send(message)

        return sent


def _is_of_another_site(request: Request) -> bool:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        return True
    navigates = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
    return request.headers.get("sec-fetch-site") in OTHER_SITES and not navigates


def _without_token(url: URL) -> str:
    rest = url.remove_query_params("token")
    return rest.path + (f"?{rest.query}" if rest.query else "")
