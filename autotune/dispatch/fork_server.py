"""A program that imports torch once and forks each trial's process from itself.

Importing torch and its compiler takes seconds, which a forked process saves. As the server only
imports, that process is as fresh as one started by hand. When an import has made forking unsafe
(it started a thread, or touched a device), jobs run in a new interpreter instead.

`ForkServerProcess` starts it as `python -m autotune.dispatch.fork_server OPTIONS_JSON`. It ends,
and kills what it forked, when its standard input is closed. A connection to its socket carries
either modules to import, or one job. For a job the server answers with the id of its process, and
at its end with its exit status (or minus the number of the signal).
"""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from autotune.dispatch.job import Failure, Job
from autotune.dispatch.mark import mark_process
from autotune.dispatch.reaper import TRIAL_VARIABLE, kill_all
from autotune.dispatch.trial_log import redirect_output
from autotune.trials.cause import cause_of
from autotune.trials.forkable import is_forkable, note_that_only_imports_run

# The two kinds of messages to the server.
IMPORT = "import"
RUN = "run"
ATTRIBUTE = ":"  # separates a module to import from a name that is taken from it
# The highest oom_score_adj: when memory runs out, the kernel kills a trial before anything else.
OOM_SCORE_OF_TRIAL = "1000"
STDIN = 0
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)
# Makes torch ask NVML whether there are CUDA devices, which does not initialise CUDA. After an
# initialisation, no forked process could use CUDA.
_NVML_CHECK_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_USERS_NVML_CHECK_VARIABLE = "AUTOTUNE_USERS_NVML_CHECK"  # keeps the user's own value meanwhile


class _Child(NamedTuple):
    """A forked process, and the token of its trial."""

    pid: int
    pidfd: int
    token: str


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[Connection, _Child] = {}
        self._waiting: set[Connection] = set()

    def serve(self) -> None:
        """Answer connections until standard input is closed."""
        while True:
            ended = {child.pidfd: connection for connection, child in self._children.items()}
            ready = wait([self._listener, STDIN, *self._waiting, *self._children, *ended])
            if STDIN in ready:
                break
            for each in ready:
                self._handle(each, ended)
        for connection in list(self._children):
            self._kill(connection)

    def _handle(self, ready: Any, ended: dict[int, Connection]) -> None:
        if ready is self._listener:
            self._waiting.add(Connection(self._listener.accept()[0].detach()))
        elif ready in self._waiting:
            self._waiting.discard(ready)
            with contextlib.suppress(EOFError, OSError):
                self._answer(ready, *pickle.loads(ready.recv_bytes()))  # noqa: S301  from the same user
        elif ended.get(ready) in self._children:
            self._report(ended[ready])
        elif ready in self._children:
            self._kill(ready)  # a job's connection becomes readable only when its client is gone

    def _answer(self, connection: Connection, kind: str, *rest: Any) -> None:
        if kind == IMPORT:
            _import(rest[0])
            connection.close()
        else:
            self._fork(connection, *rest)

    def _fork(self, connection: Connection, token: str, payload: bytes) -> None:
        writer = recv_handle(connection)
        run = _run if is_forkable() else _run_in_new_interpreter
        sys.stdout.flush()
        sys.stderr.flush()
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            _die_with(server)
            self._close_inherited()
            connection.close()
            run(payload, writer)
        os.close(writer)
        self._children[connection] = _Child(pid, os.pidfd_open(pid), token)
        connection.send(pid)

    def _close_inherited(self) -> None:
        """Close the server's files in a forked process."""
        self._listener.close()
        for connection, child in self._children.items():
            connection.close()
            os.close(child.pidfd)
        for connection in self._waiting:
            connection.close()

    def _report(self, connection: Connection) -> None:
        child = self._children.pop(connection)
        os.close(child.pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        with contextlib.suppress(OSError):  # nobody listens any more
            connection.send(code)
        connection.close()

    def _kill(self, connection: Connection) -> None:
        child = self._children[connection]
        kill_all(TRIAL_VARIABLE, child.token, child.pid)
        self._report(connection)


def _import(entries: Iterable[str]) -> None:
    """Import modules, and names from modules; the job that needs one reports its error."""
    for entry in entries:
        module, _, name = entry.partition(ATTRIBUTE)
        with contextlib.suppress(Exception):
            __import__(module, fromlist=[name] if name else [])


def _die_with(server: int) -> None:
    """Make the kernel kill this process when the server ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # it has ended already


def _run_in_new_interpreter(payload: bytes, writer: int) -> NoReturn:
    """Replace this process's program by a new interpreter that runs the job."""
    job = os.memfd_create("job", 0)
    os.write(job, payload)
    os.lseek(job, 0, os.SEEK_SET)
    os.set_inheritable(writer, True)  # noqa: FBT003  the standard library's own way
    options = json.dumps({"job": job, "writer": writer})
    command = [sys.executable, "-P", "-m", "autotune.dispatch.fork_server", options]
    os.execv(sys.executable, command)  # noqa: S606  our own module


def _run(payload: bytes, writer: int) -> NoReturn:
    """Run the job in this process, send what it yields, and end the process."""
    items = Connection(writer, readable=False)
    try:
        job: Job = pickle.loads(payload)  # noqa: S301  from the same user
        _set_up_process(job)
        for item in load(job.entry)(job.argument):
            items.send(item)
    except BaseException as error:  # noqa: BLE001  no caller is left to handle it
        with contextlib.suppress(OSError):
            failure = Failure(
                error=repr(error), traceback=traceback.format_exc(), cause=cause_of(error)
            )
            items.send(failure)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)  # threads and finalizers of the user's must not keep the result waiting


def _ask_nvml() -> None:
    if (users := os.environ.get(_NVML_CHECK_VARIABLE)) is not None:
        os.environ[_USERS_NVML_CHECK_VARIABLE] = users
    os.environ[_NVML_CHECK_VARIABLE] = "1"


def _restore_nvml_check() -> None:
    """Give the variable back the value that the user gave it, if any."""
    os.environ.pop(_NVML_CHECK_VARIABLE, None)
    if (users := os.environ.pop(_USERS_NVML_CHECK_VARIABLE, None)) is not None:
        os.environ[_NVML_CHECK_VARIABLE] = users


def _set_up_process(job: Job) -> None:
    os.setsid()
    _restore_nvml_check()
    mark_process(job.token)
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_OF_TRIAL)
    redirect_output(Path(job.log))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, STDIN)
    os.close(devnull)
    if job.cores is not None:
        os.sched_setaffinity(0, job.cores)
    if job.visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.visible_devices
    faulthandler.enable(file=2)
    # `SlotActor.end_showing_stacks` sends this signal to a trial that hangs.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def load(entry: str) -> Callable[[Any], Iterator[Any]]:
    """Return the generator function that `module:function` names."""
    module, _, name = entry.partition(":")
    function: Callable[[Any], Iterator[Any]] = getattr(importlib.import_module(module), name)
    return function


def main(options: dict[str, Any]) -> None:
    """Run the server, or the one job that `_run_in_new_interpreter` left.

    Cores are set before torch is imported, as it takes its number of threads from them.
    """
    if "job" in options:
        with open(options["job"], "rb") as job:  # noqa: PTH123  a descriptor
            _run(job.read(), options["writer"])
    note_that_only_imports_run()
    _ask_nvml()
    if options["cores"] is not None:
        os.sched_setaffinity(0, options["cores"])
    _import(options["imports"])
    if options["guessed"]:
        _import(options["guessed"])
        if not is_forkable():
            # One of them started a thread or touched a device; begin anew without them.
            _restore_nvml_check()
            command = [sys.executable, "-P", "-m", "autotune.dispatch.fork_server"]
            os.execv(sys.executable, [*command, json.dumps({**options, "guessed": []})])  # noqa: S606
    _Server(socket.socket(fileno=options["socket"])).serve()
    shutil.rmtree(options["folder"], ignore_errors=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
