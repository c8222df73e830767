"""The `autotune` command: its sub-commands, and how errors leave it."""

import sys
import time
from typing import NoReturn

import psutil
import typer

from autotune.cli.dashboard import dashboard
from autotune.cli.diagnose import diagnose
from autotune.cli.doctor import doctor
from autotune.cli.export import export
from autotune.cli.measure import measure
from autotune.cli.query import query
from autotune.cli.run import run
from autotune.cli.runs import runs
from autotune.cli.show import show
from autotune.cli.space import space
from autotune.cli.trials import trials
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
    space,
    measure,
    diagnose,
    runs,
    trials,
    show,
    query,
    export,
    dashboard,
    doctor,
):
    app.command(command.__name__)(command)


def main() -> NoReturn:
    """Run the command line and exit; a user's mistake never shows a traceback of ours."""
    sys.exit(run_command_line(started_at=_process_start()))


def run_command_line(started_at: float | None = None) -> int:
    """Do what `sys.argv` says and return the exit code.

    Args:
        started_at: moment of `time.monotonic()` from which a budget counts; None: now.
    """
    try:
        app(obj=time.monotonic() if started_at is None else started_at)
    except AutotuneError as error:
        _explain(error)
        return error.exit_code
    except SystemExit as ending:  # Typer's own: done, or an option that does not exist
        return int(ending.code or 0)
    return 0


def _process_start() -> float:
    """Return when this process began, on `time.monotonic()`: its user waits since then."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


def _explain(error: AutotuneError) -> None:
    if isinstance(error, WorkloadError) and error.user_traceback:
        sys.stderr.write(error.user_traceback.rstrip() + "\n")
    sys.stderr.write(f"autotune: {error}\n")


if __name__ == "__main__":
    main()
