"""The processes and temporary files of one run on this machine."""

import shutil
import tempfile
from pathlib import Path
from typing import Self

from autotune.dispatch.mark import NO_TRIAL, new_token
from autotune.dispatch.reaper import RUN_VARIABLE, TRIAL_VARIABLE, kill_all
from autotune.trials.command.order import SCRATCH_VARIABLE


class RunResources:
    """The processes that carry a run's token, and the run's temporary folder.

    Use it as a context manager: at its end the processes are killed and the folder is removed.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token or new_token()
        self.folder = Path(tempfile.mkdtemp(prefix="at-", dir=_short_temp_dir()))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process of the run must start with; see `mark_process`."""
        return {
            RUN_VARIABLE: self.token,
            TRIAL_VARIABLE: NO_TRIAL,
            SCRATCH_VARIABLE: str(self.folder),
        }

    def close(self) -> None:
        """Kill the processes and remove the folder. Safe to call twice."""
        kill_all(RUN_VARIABLE, self.token)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _short_temp_dir() -> str:
    """Return the folder for temporary files, or `/tmp` where its path is too long.

    The path of a Unix socket has at most 107 characters, and Ray's take about 70 below the folder.
    """
    usual = tempfile.gettempdir()
    return usual if len(usual) <= 30 else "/tmp"  # noqa: S108  mkdtemp makes a private folder in it
