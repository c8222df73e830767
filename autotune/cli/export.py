"""`autotune export RUN`: writes the plan of a winner or of a trial, also for another tool."""

import sys
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
from autotune.export.kernels import check_kernels_can_be_made, write_kernels
from autotune.export.plan_file import check_writable, write_plan_file
from autotune.report.words import size
from autotune.storage.records import RunRecord
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
    with_kernels: Annotated[
        bool,
        typer.Option(
            "--with-kernels",
            help="Also write what the compiler makes for the plan, beside it: trainings with the "
            "plan on such machines then need not compile. Trains a few steps here.",
        ),
    ] = False,
) -> None:
    """Write the plan of RUN's winner, or of one of its trials, to a file."""
    tool = None if framework is None else _framework(framework)
    path = out or (_PLAN_FILE if tool is None else Path(tool.file_name))
    if tool is None:
        check_writable(path, format_name, force=force)
    elif with_kernels:
        raise UsageError(
            f"--with-kernels is for autotune's own plan files, and --for {framework} writes "
            "another tool's; leave one of them out"
        )
    else:
        format_name = check_configuration_writable(tool, path, format_name, force=force)
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        file = read_plan_file(store, record, trial)
    if with_kernels:
        check_kernels_can_be_made(record, file, path)
    if tool is None or format_name is None:
        write_plan_file(file, path, format_name, force=force)
        print_lines(f"written: {path}")
    else:
        _write_for(tool, training_of(record, file), file, path, format_name)
    if with_kernels:
        _write_kernels(record, file, path)


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        listed = ", ".join(FRAMEWORKS)
        raise UsageError(f"--for {name}: unknown tool{nearest(name, FRAMEWORKS)} ({listed})")
    return FRAMEWORKS[name]


def _write_kernels(run: RunRecord, file: PlanFile, path: Path) -> None:
    sys.stderr.write("compiling the plan in a trial of a few steps\n")
    written = write_kernels(run, file, path)
    print_lines(
        f"written: {written.path}, {size(written.num_bytes)}, in {written.took_s:.0f} s; its "
        f"first step took {written.first_step_s:.1f} s"
    )
    print_lines(f"it lies beside {path} and is used with it; trust it as you trust code")


def _write_for(
    tool: Framework, training: Training, file: PlanFile, path: Path, format_name: str
) -> None:
    written = configuration(tool, training, file, format_name, path.name)
    write_configuration(written, path)
    print_lines(f"written: {path}, for {tool.made_for}")
    if written.left_out:
        print_lines("not in it, as the tool has no such key; do in your own code:")
        print_lines(*(f"  {one.words}" for one in written.left_out))
