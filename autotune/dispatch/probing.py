"""Runs the probe in a process of its own, so that no workload can harm or hang the driver."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from autotune.dispatch.fork_client import ForkedJob, ForkServerProcess
from autotune.dispatch.job import Exit, Failure, Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.reaper import TRIAL_VARIABLE, kill_all
from autotune.errors import WorkloadError
from autotune.search_space.facts import WorkloadFacts
from autotune.trials.request import ProbeRequest, Rejection

PROBE = "autotune.trials.probe:answer"
_TAIL_CHARS = 4000


class Probe:
    """A process that looks at a workload while the caller does other things.

    Use it as a context manager: at its end the process and all it started are gone.

    Raises:
        WorkloadError: at once when there is no such file.
    """

    def __init__(self, server: ForkServerProcess, request: ProbeRequest) -> None:
        self._path = Path(request.workload_path)
        check_file(self._path)
        self._folder = tempfile.TemporaryDirectory(prefix="autotune-probe-")
        self._log = Path(self._folder.name, "log")
        self._token = new_token()
        job = Job(entry=PROBE, argument=request, log=str(self._log), token=self._token)
        self._forked = ForkedJob(server.address, job)

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """Return what the process found; nothing that it started is left then.

        Raises:
            WorkloadError: when the workload breaks its contract, raises, dies, or takes longer.
        """
        items = list(self._forked.items(timeout_s))
        if self._forked.has_begun(0.0):
            kill_all(TRIAL_VARIABLE, self._token, self._forked.pid())
        tail = self._log.read_text(errors="replace")[-_TAIL_CHARS:] if items else ""
        return read_facts(items, self._path, timeout_s, tail)

    def close(self) -> None:
        """Kill the process and what it started. Safe to call twice."""
        self._forked.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def check_file(path: Path) -> None:
    """Check that the workload is there.

    Raises:
        WorkloadError: when there is no such file.
    """
    if not path.is_file():
        raise WorkloadError(f"there is no file {path}; give the path of your model.py")


def read_facts(
    items: Sequence[Any], path: Path, timeout_s: float, log_tail: str = ""
) -> WorkloadFacts:
    """Return the facts among what the probe's process sent, up to its `Exit`.

    Raises:
        WorkloadError: see `Probe.facts`.
    """
    match items:
        case [WorkloadFacts() as facts, *_]:
            return facts
        case [Rejection() | Failure() as wrong, *_]:
            raise WorkloadError(wrong.error, wrong.traceback)
        case [Exit(code=code)]:
            raise WorkloadError(_died(path, code), _without_our_frames(log_tail))
    raise WorkloadError(
        f"{path.name} was not looked at within {timeout_s:.0f} s: that builds its model, its "
        "dataset and a first batch, and calls compute_loss once on the meta device; make that "
        "faster, look for an endless loop, or give a larger --budget"
    )


def _died(path: Path, code: int) -> str:
    ended = f"signal {-code}" if code < 0 else f"exit status {code}"
    return (
        f"{path.name} ended the process that looked at it ({ended}) while the model, the dataset "
        "and a first batch were built; run it by itself to see why"
    )


def _without_our_frames(log: str) -> str:
    """Return what a dying process wrote, without the part of its stack that is not the user's."""
    ours = (str(Path(__file__).parents[1]), "<frozen importlib")
    return "".join(
        line for line in log.splitlines(keepends=True) if not any(o in line for o in ours)
    )
