"""`autotune exec --plan plan.yaml -- COMMAND`: trains with a plan, the script as it is."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.invocation import invocation_of
from autotune.errors import UsageError
from autotune.export.plan_file import load_plan_file
from autotune.search_space.command import Command


def exec_(
    context: typer.Context,
    *,
    plan: Annotated[Path, typer.Option(help="The plan file that `autotune run` wrote.")],
) -> None:
    """Run a training command with a plan applied: `autotune exec --plan plan.yaml -- COMMAND`.

    The command takes this process's place: its output, its exit status and signals are its own.
    """
    from autotune.trials.command.launch import execute  # noqa: PLC0415  `--help` is fast

    invocation = invocation_of(context)
    typed = invocation.command()
    file = load_plan_file(plan)
    bindings = file.command.bindings if file.command else ()
    try:
        execute(Command(argv=typed, bindings=bindings), file.plan)
    except OSError as error:
        raise UsageError(f"cannot run {typed[0]!r}: {error.strerror}") from None
