"""`autotune jobs`: lists the jobs of a server."""

from typing import Annotated, Any

import typer

from autotune.cli.options import AsJson, Server
from autotune.cli.output import print_fitting, print_json, print_lines
from autotune.report.words import cell, duration
from autotune.service.client import Client

COLUMNS = ("id", "name", "state", "owner", "priority", "waited", "run", "workload", "message")
EXPENDABLE = ("message", "workload", "run", "priority", "owner")


def jobs(
    *,
    server: Server = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state, such as queued; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Jobs to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a server, newest first."""
    found = Client(server).jobs(state or (), limit)
    if as_json:
        print_json(found)
    elif found:
        print_fitting(COLUMNS, map(_row, found), EXPENDABLE)
    else:
        print_lines("no job yet; `autotune submit MODEL` makes one")


def _row(job: dict[str, Any]) -> list[str]:
    return [
        str(job["id"]),
        job["name"],
        "stopping" if job["is_stopping"] else job["state"],
        job["owner"],
        str(job["priority"]),
        duration(job["waited_s"]),
        cell(job["run"]),
        job["workload"],
        cell(job["message"]),
    ]
