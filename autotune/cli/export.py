"""`autotune export RUN -o plan.yaml`: a run's winner, or one of its trials, as a plan file."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.output import Storage, print_lines
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import check_writable, write_plan_file
from autotune.storage.sql import open_store


def export(
    run: Annotated[str, typer.Argument(help="A run's name or id; `last` is the newest.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the plan goes.")] = Path(
        "plan.yaml"
    ),
    *,
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="yaml, json or toml; default: by the file's suffix."),
    ] = None,
    trial: Annotated[int | None, typer.Option(help="This trial, not the winner.")] = None,
    storage: Storage = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not a plan file.")
    ] = False,
) -> None:
    """Write RUN's winner as a plan file."""
    check_writable(out, format_name, force=force)
    with closing(open_store(storage, read_only=True)) as store:
        file = read_plan_file(store, store.run(run), trial)
    write_plan_file(file, out, format_name, force=force)
    print_lines(f"written: {out}")
