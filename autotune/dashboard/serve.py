"""Serves the web application until Ctrl-C."""

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from autotune.dashboard.guard import LOOPBACK
from autotune.errors import UsageError

TOKEN_BYTES = 24  # of randomness
GRACE_S = 2  # for open requests, after Ctrl-C


def token_for(host: str, token: str | None) -> str | None:
    """Return the token that viewers must give.

    That is `token` if given, else a new one, or None where only this machine can connect.
    """
    if token is not None or host in LOOPBACK:
        return token
    return secrets.token_urlsafe(TOKEN_BYTES)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`; port 0 means any free one.

    Raises:
        UsageError: when the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(_cannot_listen(host, port, error)) from error


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use, perhaps by another dashboard; choose another with "
            "--port, or --port 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs root's rights; choose one above 1023 with --port"
    return f"cannot listen on --host {host}: {error.strerror}; use an address of this machine"


class _Server(uvicorn.Server):
    """A uvicorn server that calls `started` when it accepts requests and handles Ctrl-C."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()


def serve(app: ASGIApp, listener: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until Ctrl-C or SIGTERM; call `started` when the server is ready."""
    config = uvicorn.Config(
        app, log_level="warning", server_header=False, timeout_graceful_shutdown=GRACE_S
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn ends first, then raises it again
        _Server(config, started).run(sockets=[listener])
