"""`autotune watch JOB`: shows a job of a server until it has ended."""

import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from autotune.cli.options import Job, Server
from autotune.errors import AutotuneError, InterruptedRunError
from autotune.service.client import Client, JobMessage

_STYLES = {"event": "cyan", "lost": "yellow"}


def watch(job: Job, *, server: Server = None) -> None:
    """Show what a job prints, from its beginning to its end; Ctrl-C leaves it running."""
    show_job(Client(server), job)


def show_job(client: Client, job: int | str) -> None:
    """Print what a job says until it has ended.

    Raises:
        InterruptedRunError: when the job was cancelled, or the user pressed Ctrl-C.
        AutotuneError: when the job failed.
    """
    console = Console(stderr=True, highlight=False)
    try:
        for message in client.watch(job):
            _show(console, message)
            if message.kind == "end":
                _conclude(message.data)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"job {job} goes on; `autotune watch {job}` shows it again, `autotune cancel {job}` "
            "stops it"
        ) from None


def _show(console: Console, message: JobMessage) -> None:
    if message.kind == "output":
        sys.stdout.write(f"{message.text}\n")
        sys.stdout.flush()
    elif message.kind in _STYLES:
        words = f"{message.data['kind']}: {message.text}" if message.data else message.text
        console.print(Text(words, style=_STYLES[message.kind]), soft_wrap=True)


def _conclude(job: dict[str, Any]) -> None:
    if job["state"] == "cancelled":
        raise InterruptedRunError(f"job {job['id']} was cancelled: {job['message']}")
    if job["state"] == "failed":
        # A failed run ends with its own code; so does whoever watches it.
        code = job["exit_code"] or AutotuneError.exit_code
        sys.stderr.write(f"autotune: job {job['id']} failed: {job['message']}\n")
        raise typer.Exit(code if code > 0 else AutotuneError.exit_code)
