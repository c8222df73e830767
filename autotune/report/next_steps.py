"""The commands that follow a run, for the terminal and the dashboard."""

import shlex

from autotune.search_space.command import Command
from autotune.storage.location import locate
from autotune.storage.records import RunRecord

LONGER = 4
"""How many times as long a run is advised to be that did not find enough."""
_UNITS = ((3600, "h"), (60, "m"), (1, "s"))


def export_command(run: RunRecord, file: str, storage: str | None) -> str:
    """Return the command that writes the winner's plan file."""
    option = [] if storage is None else ["--storage", locate(storage).shown]
    return shlex.join(["autotune", "export", run.name, "-o", file, *option])


def longer_run_command(run: RunRecord) -> str:
    """Return the command that looks for a plan again with more time."""
    budget = ["--budget", _duration(LONGER * run.new.budget_s)]
    command = run.new.facts.get("command")
    if command is None:
        return shlex.join(["autotune", "run", run.new.workload_path, *budget])
    return shlex.join(["autotune", "run", *budget, "--", *Command.from_dict(command).argv])


def _duration(seconds: float) -> str:
    """Return a duration as `--budget` takes it, in the largest unit that divides it."""
    whole = round(seconds)
    size, unit = next((size, unit) for size, unit in _UNITS if whole % size == 0)
    return f"{whole // size}{unit}"
