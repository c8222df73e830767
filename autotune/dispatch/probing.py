"""Runs the probe in a process of its own, so that no workload can harm or hang the driver."""

import abc
import itertools
import shlex
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

PROBE = "autotune.trials.probing.probe:answer"
OBSERVE = "autotune.trials.command.launch:observe_command"
CONTRACT = ("build_model", "build_dataset", "compute_loss")
_TAIL_CHARS = 4000


class ProbeJob(abc.ABC):
    """A probe of a workload that runs in its own process while the caller does other things."""

    def __init__(self, request: ProbeRequest, log: str) -> None:
        self._path, self._command = Path(request.workload_path), request.command
        entry = PROBE if request.command is None else OBSERVE
        self._job = Job(entry=entry, argument=request, log=log, token=new_token())

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """Return what the process found; nothing that it started is left then.

        Raises:
            WorkloadError: when the workload breaks its contract, raises, dies, or takes longer.
        """
        items, log_tail = self._wait(timeout_s)
        if not items and self._command is not None:
            raise WorkloadError(
                f"`{shlex.join(self._command.argv)}` took fewer than three optimizer steps within "
                f"{timeout_s:.0f} s; let it begin to train sooner, for example on less data, or "
                "give a larger --budget"
            )
        return _read_facts(items, log_tail, self._path, timeout_s)

    @abc.abstractmethod
    def _wait(self, timeout_s: float) -> tuple[list[Any], str]:
        """Return what the process sent up to its `Exit`, and the end of its log."""


class Probe(ProbeJob):
    """A probe on this machine.

    Use it as a context manager: at its end the process and all it started are gone.

    Raises:
        WorkloadError: at once when there is no such file.
    """

    def __init__(self, server: ForkServerProcess, request: ProbeRequest) -> None:
        if request.command is None:
            check_file(Path(request.workload_path))
        self._folder = tempfile.TemporaryDirectory(prefix="autotune-probe-")
        super().__init__(request, log=str(Path(self._folder.name, "log")))
        self._forked = ForkedJob(server.address, self._job)

    def _wait(self, timeout_s: float) -> tuple[list[Any], str]:
        # The first item is the answer; the end of its process would be known later, as the server
        # may be importing.
        items = list(itertools.islice(self._forked.items(timeout_s), 1))
        if self._forked.has_begun(0.0):
            kill_all(TRIAL_VARIABLE, self._job.token, self._forked.pid())
        log = Path(self._job.log).read_text(errors="replace") if items else ""
        return items, log[-_TAIL_CHARS:]

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
    """Check that the workload is there, and that it may have the functions of one.

    Raises:
        WorkloadError: when there is no such file, or it is a script that would train if imported.
    """
    if not path.is_file():
        raise WorkloadError(f"there is no file {path}; give the path of your model.py")
    text = path.read_text(errors="replace")
    if not any(name in text for name in (*CONTRACT, "import *")):
        raise WorkloadError(
            f"{path.name} names none of {', '.join(CONTRACT)}; to tune a training script as it "
            f"is, type `autotune run -- python {path.name}`"
        )


def _read_facts(
    items: Sequence[Any], log_tail: str, path: Path, timeout_s: float
) -> WorkloadFacts:
    match items:
        case [WorkloadFacts() as facts, *_]:
            return facts
        case [Rejection() | Failure() as wrong, *_]:
            raise WorkloadError(wrong.error, wrong.traceback or log_tail)
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
