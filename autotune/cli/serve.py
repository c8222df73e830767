"""`autotune serve`: one process with the dashboard, the API and a queue of runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.dashboard import REQUIRED_PACKAGES, check_installed, host_in_url
from autotune.cli.options import Storage
from autotune.cli.output import print_lines
from autotune.errors import UsageError
from autotune.storage.location import locate
from autotune.storage.sql import open_store

# The packages of the extra `service`, by their import names.
SERVICE_PACKAGES = (*REQUIRED_PACKAGES, "prometheus_client", "python_multipart")
NO_TOKEN = "no token yet; make one in another terminal: autotune token create NAME"  # noqa: S105  a sentence


def serve(
    *,
    storage: Storage = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8060,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Keeps workloads and output; default: autotune-service beside the store.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Devices to give to jobs; default: all GPUs, or the CPU as one. On a CPU, each "
            "is an equal share of the cores.",
            show_default=False,
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="The interpreter of jobs that name none; default: this one."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster that jobs run on.")
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option("--pass-env", help="A variable of the environment that jobs inherit."),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Gets a message when a job ends.")
    ] = None,
) -> None:
    """Run a queue for a team: jobs come in over HTTP, and start when devices are free."""
    check_installed("the service", SERVICE_PACKAGES, "service")
    location = locate(storage)
    # Imported after the check above, as it takes half a second.
    from autotune.dashboard.serve import listen  # noqa: PLC0415
    from autotune.service.devices import find_devices  # noqa: PLC0415
    from autotune.service.running import run_server  # noqa: PLC0415
    from autotune.service.settings import DEFAULT_FOLDER, ServiceSettings  # noqa: PLC0415
    from autotune.service.webhook import check_webhook  # noqa: PLC0415

    if webhook is not None:
        check_webhook(webhook)
    beside = Path.cwd() if location.path is None else location.path.absolute().parent
    settings = ServiceSettings(
        storage=storage,
        folder=(folder or beside / DEFAULT_FOLDER).expanduser().absolute(),
        devices=find_devices(devices, on_cluster=ray_address is not None),
        python=_interpreter(python),
        ray_address=ray_address,
        passed=tuple(pass_env or ()),
        webhook=webhook,
    )
    with listen(host, port) as listener:
        address = f"http://{host_in_url(host)}:{listener.getsockname()[1]}/"
        open_store(storage).close()  # makes its tables where there are none
        run_server(
            settings,
            listener,
            address,
            say=print_lines,
            started=lambda: _introduce(settings.storage, address, settings.devices.ids),
        )


def _interpreter(python: Path | None) -> str:
    if python is None:
        return sys.executable
    if not python.is_file():
        raise UsageError(f"--python {python}: there is no such interpreter; give its whole path")
    return str(python.absolute())


def _introduce(storage: str | None, address: str, devices: tuple[str, ...]) -> None:
    print_lines(
        f"serving {locate(storage).shown} at {address}",
        f"devices for jobs: {', '.join(devices)}",
        *_without_tokens(storage),
        "Press Ctrl-C to end; jobs go on meanwhile.",
    )


def _without_tokens(storage: str | None) -> list[str]:
    store = open_store(storage, read_only=True)
    try:
        return [] if store.tokens.all() else [NO_TOKEN]
    finally:
        store.close()
