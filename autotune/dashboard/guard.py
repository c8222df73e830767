"""Who may look: the token, and whether a request comes from our own pages.

Without a token the server answers only requests that name this very machine: a page elsewhere
whose name was made to point here (DNS rebinding) names itself. With a token the cookie does that
service: the browser does not send it under another name.
"""

import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.dashboard.problems import answer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FRAMES_OF_OTHERS = ("cross-site", "same-site")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """An ASGI application around another one, which lets through whom it should.

    Args:
        app: the one to guard.
        token: what a viewer must know; None where only this machine can connect.
        policy: the Content-Security-Policy of a path's page.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, policy: Callable[[str], str]) -> None:
        self._app = app
        self._token = token
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, self._with_headers(scope["path"], send))

    def _refusal(self, request: Request) -> Response | None:
        if self._token is None and request.url.hostname not in LOOPBACK:
            return answer(
                403,
                f"this server answers only to {', '.join(LOOPBACK)}, not to "
                f"{request.url.hostname!r}; to look from elsewhere, start it with --host, which "
                "asks for a token",
            )
        if _is_of_another_site(request):
            return answer(403, "another site's page may not ask this server; open it directly")
        return None if self._token is None else self._ask_for(self._token, request)

    def _ask_for(self, token: str, request: Request) -> Response | None:
        cookie = f"autotune_{request.url.port or 80}"
        if _is(request.query_params.get("token"), token):
            response = RedirectResponse(_without_token(request.url), 303)
            response.set_cookie(cookie, token, httponly=True, samesite="lax")
            return response
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        known = bearer if scheme.lower() == "bearer" else request.cookies.get(cookie)
        if _is(known, token):
            return None
        return answer(
            401,
            "this dashboard wants the token that `autotune dashboard` printed: open the address "
            "with ?token=... once, or send it as `Authorization: Bearer ...`",
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
    return request.headers.get("sec-fetch-site") in FRAMES_OF_OTHERS and not navigates


def _is(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _without_token(url: URL) -> str:
    rest = url.remove_query_params("token")
    return rest.path + (f"?{rest.query}" if rest.query else "")
