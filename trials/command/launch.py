"""Starts a command for a trial or a probe, and hands on what its processes report."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import psutil

from autotune.search_space.command import Command
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.trials.command import startup
from autotune.trials.command.forked import ForkedScript, is_plain_script
from autotune.trials.command.order import SCRATCH_VARIABLE, Order, Task
from autotune.trials.command.scratch import mirror_tree
from autotune.trials.forkable import is_new_with_torch
from autotune.trials.request import ProbeRequest, Rejection, TrialRequest
from autotune.trials.result import Kept, Outcome, Phase, TrialResult

_END_S = 10.0  # for killed processes to be gone
# Loggers that would send half a training over the network.
_QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "offline",
    "COMET_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
}


def run_command(request: TrialRequest) -> Iterator[Phase | Kept | TrialResult]:
    """Yield each phase of a trial of a command as it begins, then exactly one result.

    Before a diagnosis, which may fail or hang, the result without it is yielded as `Kept`.

    The command starts its own ranks, so the places beside the first only hold their devices.
    """
    command = request.command
    assert command is not None
    if request.place.rank:
        yield TrialResult(outcome=Outcome.OK)
        return
    order = Order(
        task=Task.MEASURE if request.compare_with is None else Task.COMPARE,
        plan=request.plan,
        command=command,
        home=request.working_dir,
        protocol=request.protocol,
        interesting_above=request.interesting_above,
        memory_limit_bytes=request.memory_limit_bytes,
        diagnosis=request.diagnosis,
        kernels_path=request.kernels_path,
    )
    yield Phase.BUILD
    phase = Phase.BUILD
    with Launched(command.under(request.plan), order) as launched:
        for item in launched.reports():
            phase = item if isinstance(item, Phase) else phase
            yield item
            if isinstance(item, TrialResult):
                return
        yield TrialResult(
            outcome=Outcome.CRASH,
            phase=phase,
            error=f"the command ended with {launched.ending()} {_WHEN_ENDED[phase]}",
            user_error=True,
        )


_WHEN_ENDED = {
    Phase.BUILD: "before it trained: no optimizer of torch took a step for a model of its process",
    Phase.FIRST_STEP: "in its first optimizer steps; let it train for more steps",
    Phase.COMPARE: "before its steps were compared",
    Phase.WARM_UP: "while it warmed up; let it train for more steps",
    Phase.MEASURE: "before enough steps were measured; let it train for more steps",
    Phase.DIAGNOSE: "while its step was diagnosed; let it train for more steps",
}


def observe_command(request: ProbeRequest) -> Iterator[WorkloadFacts | Rejection]:
    """Yield one answer: the facts about a training, or why its command cannot be tuned."""
    command = request.command
    assert command is not None
    order = Order(
        task=Task.OBSERVE,
        plan=Plan.of({}),
        command=command,
        home=request.working_dir,
        hardware=request.hardware,
    )
    phase = Phase.BUILD
    try:
        launched = Launched(command.argv, order)
    except OSError as error:
        yield Rejection(error=f"cannot run {command.argv[0]!r}: {error.strerror}", traceback="")
        return
    with launched:
        for item in launched.reports():
            if isinstance(item, WorkloadFacts):
                yield item
                return
            if isinstance(item, TrialResult):
                yield Rejection(error=str(item.error), traceback=item.traceback or "")
                return
            phase = item
        ended = f"ended with {launched.ending()} {_WHEN_ENDED[phase]}"
        yield Rejection(error=f"`{' '.join(command.argv)}` {ended}", traceback="")


class Launched:
    """A running command with hooks, in a scratch folder; a context manager that ends it.

    Args:
        argv: what to run.
        order: for its processes; where it reports and where it may write is filled in.
    """

    def __init__(self, argv: tuple[str, ...], order: Order) -> None:
        base = os.environ.get(SCRATCH_VARIABLE)
        self._folder = Path(tempfile.mkdtemp(prefix="command-", dir=base))
        address = str(self._folder / "reports")
        tree = self._folder / "root"
        scratch = mirror_tree(Path(order.home), tree)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._connections: list[Connection] = []
        order = replace(order, address=address, scratch=str(tree))
        self._process = _started(
            order.command.writing_below(scratch / "output", argv),
            scratch,
            {**os.environ, **_QUIET, **hooked(order)},
        )
        self._pidfd = os.pidfd_open(self._process.pid)

    def reports(self) -> Iterator[Any]:
        """Yield what the processes send, until the command has ended."""
        while True:
            for ready in wait([self._listener, self._pidfd, *self._connections]):
                if ready is self._listener:
                    self._connections.append(Connection(self._listener.accept()[0].detach()))
                elif isinstance(ready, Connection):
                    yield from self._received(ready)
            if self._process.poll() is not None and not wait(
                [self._listener, *self._connections], 0
            ):
                return

    def _received(self, connection: Connection) -> Iterator[Any]:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            self._connections.remove(connection)

    def ending(self) -> str:
        """Return how the command ended, in words."""
        code = self._process.wait()
        return f"exit status {code}" if code >= 0 else signal.Signals(-code).name

    def close(self) -> None:
        """Kill the command with all that it started, and remove its folder."""
        processes = [psutil.Process(self._process.pid)] if self._process.poll() is None else []
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += [each for one in processes for each in one.children(recursive=True)]
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=_END_S)
        os.close(self._pidfd)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _started(
    argv: tuple[str, ...], cwd: Path, env: Mapping[str, str]
) -> "subprocess.Popen[bytes] | ForkedScript":
    if is_new_with_torch() and is_plain_script(argv) and (cwd / argv[1]).is_file():
        return ForkedScript(argv, cwd=cwd, env=env)
    return subprocess.Popen(  # noqa: S603  the user's own command
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL
    )


def hooked(order: Order) -> Mapping[str, str]:
    """Return the environment variables with which a command's processes are hooked."""
    folders = [str(Path(startup.__file__).parent), os.environ.get("PYTHONPATH", "")]
    package = str(Path(startup.__file__).parents[4])
    is_installed = Path(package).name in ("site-packages", "dist-packages")
    if not is_installed and package not in folders[1].split(os.pathsep):
        folders.append(package)
    return {**order.environment(), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def execute(command: Command, plan: Plan) -> None:
    """Replace this process by the command, trained under a plan.

    Raises:
        OSError: when there is no such program.
    """
    argv = command.under(plan)
    if argv != command.argv:
        sys.stderr.write(f"autotune: the plan makes it `{shlex.join(argv)}`\n")
    made, size = command.loaders, plan.values.get("batch_size")
    if made is not None and size not in (None, made.batch_size):
        sys.stderr.write(f"autotune: the plan gives batches of {size} to the script's {made}\n")
    order = Order(task=Task.TRAIN, plan=plan, command=command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(argv[0], argv, {**os.environ, **hooked(order)})  # noqa: S606  the user's own command
