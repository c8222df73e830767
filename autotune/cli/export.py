"""`autotune export RUN`: writes the plan of a winner or of a trial, also for another tool."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Run, Storage
from autotune.cli.output import print_lines
from autotune.errors import UsageError, nearest
from autotune.export.configuration import (
    check_configuration_writable,
    configuration,
    write_configuration,
)
from autotune.export.contents import PlanFile, read_plan_file
from autotune.export.frameworks import FRAMEWORKS
from autotune.export.frameworks.framework import Framework
from autotune.export.frameworks.training import Training, training_of
from autotune.export.plan_file import check_writable, write_plan_file
from autotune.storage.sql import open_store

_PLAN_FILE = Path("plan.yaml")


def export(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="The file to write; default: plan.yaml, or with --for a name of the tool's.",
            show_default=False,
        ),
    ] = None,
    *,
    framework: Annotated[
        str | None,
        typer.Option(
            "--for",
            help=f"Write the configuration of another tool: {', '.join(FRAMEWORKS)}.",
            show_default=False,
        ),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="yaml, json or toml, or with --for one that the tool reads; default: the file's "
            "suffix.",
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="The number of a trial; default: the winner.")
    ] = None,
    storage: Storage = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that autotune did not write.")
    ] = False,
) -> None:
    """Write the plan of RUN's winner, or of one of its trials, to a file."""
    tool = None if framework is None else _framework(framework)
    path = out or (_PLAN_FILE if tool is None else Path(tool.file_name))
    if tool is None:
        check_writable(path, format_name, force=force)
    else:
        format_name = check_configuration_writable(tool, path, format_name, force=force)
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        file = read_plan_file(store, record, trial)
    if tool is None or format_name is None:
        write_plan_file(file, path, format_name, force=force)
        print_lines(f"written: {path}")
    else:
        _write_for(tool, training_of(record, file), file, path, format_name)


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        listed = ", ".join(FRAMEWORKS)
        raise UsageError(f"--for {name}: unknown tool{nearest(name, FRAMEWORKS)} ({listed})")
    return FRAMEWORKS[name]


def _write_for(
    tool: Framework, training: Training, file: PlanFile, path: Path, format_name: str
) -> None:
    written = configuration(tool, training, file, format_name, path.name)
    write_configuration(written, path)
    print_lines(f"written: {path}, for {tool.made_for}")
    if written.left_out:
        print_lines("not in it, as the tool has no such key; do in your own code:")
        print_lines(*(f"  {one.words}" for one in written.left_out))
