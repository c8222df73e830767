"""`autotune export RUN -o plan.yaml`: writes the plan of a winner or of a trial to a file."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Run, Storage
from autotune.cli.output import print_lines
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import check_writable, write_plan_file
from autotune.storage.sql import open_store


def export(
    run: Run,
    out: Annotated[Path, typer.Option("-o", "--out", help="The plan file to write.")] = Path(
        "plan.yaml"
    ),
    *,
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="yaml, json or toml; default: the file's suffix."),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="The number of a trial; default: the winner.")
    ] = None,
    storage: Storage = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not a plan file.")
    ] = False,
) -> None:
    """Write the plan of RUN's winner, or of one of its trials, to a file."""
    check_writable(out, format_name, force=force)
    with closing(open_store(storage, read_only=True)) as store:
        file = read_plan_file(store, store.run(run), trial)
    write_plan_file(file, out, format_name, force=force)
    print_lines(f"written: {out}")
