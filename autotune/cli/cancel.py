"""`autotune cancel JOB`: ends a job of a server; what it found is kept."""

from autotune.cli.options import Job, Server
from autotune.cli.output import print_lines
from autotune.service.client import Client


def cancel(job: Job, *, server: Server = None) -> None:
    """Take a job out of the queue, or stop it like Ctrl-C does; what it found is kept."""
    found = Client(server).cancel(job)
    words = (
        "is stopping, and keeps what it found" if found["is_stopping"] else f"is {found['state']}"
    )
    print_lines(f"job {found['id']} {words}")
