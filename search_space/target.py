"""What is tuned: the functions of a workload, or a command as it is."""

from dataclasses import dataclass
from pathlib import Path

from autotune.search_space.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is tuned.

    Attributes:
        path: absolute path of the user's model.py, or of the script that `command` runs.
        command: the command that trains, run as it is; None: the functions of model.py are called.
        arguments: what model.py finds in `sys.argv` beside its own name.
    """

    path: Path
    command: Command | None = None
    arguments: tuple[str, ...] = ()
