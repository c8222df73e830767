"""`autotune fetch JOB`: gets the plan file that a job has found."""

import json
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Job, Server
from autotune.cli.output import print_lines
from autotune.export.plan_file import check_writable
from autotune.service.client import Client


def fetch(
    job: Job,
    out: Annotated[Path, typer.Option("-o", "--out", help="The plan file to write.")] = Path(
        "plan.yaml"
    ),
    *,
    report: Annotated[
        Path | None,
        typer.Option(help="A file for the conclusion as JSON, too.", show_default=False),
    ] = None,
    server: Server = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that autotune did not write.")
    ] = False,
) -> None:
    """Get the plan file that a job has found, also while it goes on or after it was cancelled."""
    format_name = check_writable(out, force=force)
    client = Client(server)
    out.write_text(client.plan(job, format_name))
    print_lines(f"written: {out}")
    if report is not None:
        report.write_text(json.dumps(client.report(job), indent=2) + "\n")
        print_lines(f"written: {report}")
