"""`autotune dashboard`: serves a web page that shows a store."""

import importlib.util
import socket
from collections.abc import Iterable
from typing import Annotated

import typer

from autotune.cli.options import Storage
from autotune.cli.output import print_lines
from autotune.errors import UsageError
from autotune.storage.location import locate

# The packages of the extra `dashboard`, by their import names.
REQUIRED_PACKAGES = (
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
        str,
        typer.Option(
            help="Address to listen on; one that other machines can reach asks for a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8050,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="AUTOTUNE_DASHBOARD_TOKEN",
            help="Token that viewers must give.  [default: none on this machine, else a new one]",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
) -> None:
    """Show the runs and trials of a store in the browser, while they run and afterwards."""
    check_installed("the dashboard", REQUIRED_PACKAGES, "dashboard")
    _check_token(token)
    location = locate(storage)
    # Imported after the checks above, as it takes half a second.
    from autotune.dashboard.app import make_app  # noqa: PLC0415
    from autotune.dashboard.serve import listen, serve, token_for  # noqa: PLC0415

    with listen(host, port) as listener:
        viewer_token = token_for(host, token)
        address = f"http://{host_in_url(host)}:{listener.getsockname()[1]}/"
        serve(
            make_app(storage, viewer_token),
            listener,
            lambda: print_lines(
                f"showing {location.shown} at {address}"
                + (f"?token={viewer_token}" if viewer_token else ""),
                "Press Ctrl-C to end.",
            ),
        )


def check_installed(what: str, packages: Iterable[str], extra: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        UsageError: with the line that installs them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs packages that are not installed ({', '.join(missing)}); run: "
            f"pip install 'torch-autotune[{extra}]'"
        )


def _check_token(token: str | None) -> None:
    if token is not None and len(token) < 8:
        raise UsageError(
            f"--token has {len(token)} characters, too few for a secret; use 8 or more"
        )


def host_in_url(host: str) -> str:
    """Return the host of the address that viewers open, for the one that a server listens on."""
    if host in {"0.0.0.0", "::"}:  # noqa: S104  the user asked for it
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
