"""The `autotune` command: its subcommands, error messages and exit codes."""

import sys
import time
from typing import NoReturn

import psutil
import typer

from autotune.cli.cancel import cancel
from autotune.cli.check import check
from autotune.cli.dashboard import dashboard
from autotune.cli.diagnose import diagnose
from autotune.cli.doctor import doctor
from autotune.cli.exec import exec_
from autotune.cli.export import export
from autotune.cli.fetch import fetch
from autotune.cli.invocation import Invocation, split
from autotune.cli.jobs import jobs
from autotune.cli.measure import measure
from autotune.cli.query import query
from autotune.cli.run import run
from autotune.cli.runs import runs
from autotune.cli.serve import serve
from autotune.cli.show import show
from autotune.cli.space import space
from autotune.cli.submit import submit
from autotune.cli.token import token
from autotune.cli.trials import trials
from autotune.cli.watch import watch
from autotune.errors import AutotuneError, WorkloadError

app = typer.Typer(
    name="autotune",
    help="Find the fastest way to train a PyTorch model on this hardware, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    run,
    exec_,
    space,
    measure,
    check,
    diagnose,
    runs,
    trials,
    show,
    query,
    export,
    dashboard,
    doctor,
    serve,
    token,
    submit,
    jobs,
    watch,
    cancel,
    fetch,
):
    app.command(command.__name__.rstrip("_"))(command)


def main() -> NoReturn:
    """Run the command line and exit with its code; a user's error prints no traceback."""
    sys.exit(run_command_line(started_at=_process_start()))


def run_command_line(started_at: float | None = None) -> int:
    """Run the command in `sys.argv` and return its exit code.

    Args:
        started_at: when a budget began, on `time.monotonic()`; None: now.
    """
    try:
        words, behind = split(sys.argv[1:])
        began_at = time.monotonic() if started_at is None else started_at
        app(args=words, obj=Invocation(started_at=began_at, behind=behind))
    except AutotuneError as error:
        _print_error(error)
        return error.exit_code
    except SystemExit as ending:  # Typer ends so, with 0, or 2 for an unknown option
        return int(ending.code or 0)
    return 0


def _process_start() -> float:
    """Return when this process began, on `time.monotonic()`."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


def _print_error(error: AutotuneError) -> None:
    if isinstance(error, WorkloadError) and error.user_traceback:
        sys.stderr.write(error.user_traceback.rstrip() + "\n")
    sys.stderr.write(f"autotune: {error}\n")


if __name__ == "__main__":
    main()
