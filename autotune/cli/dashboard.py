"""`autotune dashboard`: look at a store in the browser."""

import importlib.util
import socket
from typing import Annotated

import typer

from autotune.cli.output import Storage, print_lines
from autotune.errors import UsageError
from autotune.storage.location import locate

NEEDED = (
    "a2wsgi",
    "dash",
    "dash_ag_grid",
    "dash_mantine_components",
    "fastapi",
    "fastapi_offline",
    "optuna_dashboard",
    "uvicorn",
)


def dashboard(
    *,
    storage: Storage = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others reach asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8050,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="AUTOTUNE_DASHBOARD_TOKEN",
            help="What viewers must know.  [default: none on this machine, else a new one]",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
) -> None:
    """Show runs and trials in the browser, live, and answer questions about them."""
    _check_installed()
    _check_token(token)
    location = locate(storage)
    # Half a second of imports, after what may be wrong with the command line.
    from autotune.dashboard.app import make_app  # noqa: PLC0415
    from autotune.dashboard.serve import listen, needed_token, serve  # noqa: PLC0415

    with listen(host, port) as listener:
        known = needed_token(host, token)
        address = f"http://{_named(host)}:{listener.getsockname()[1]}/"
        serve(
            make_app(storage, known),
            listener,
            lambda: print_lines(
                f"{location.shown} at {address}" + (f"?token={known}" if known else ""),
                "Ctrl-C ends it.",
            ),
        )


def _check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs packages that are not installed ({', '.join(missing)}); run: "
            "pip install 'torch-autotune[dashboard]'"
        )


def _check_token(token: str | None) -> None:
    if token is not None and len(token) < 8:
        raise UsageError("--token is too short to be a secret; use 8 characters or more")


def _named(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104  it is what the user asked for
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
