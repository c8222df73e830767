"""The driver's side of the fork server: starts it, sends it jobs, receives what they yield."""

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Self

from autotune.dispatch.fork_server import IMPORT, RUN
from autotune.dispatch.import_path import import_path
from autotune.dispatch.job import Exit, Job
from autotune.dispatch.reaper import is_stopped
from autotune.dispatch.run_resources import RunResources
from autotune.errors import ClusterError

# The modules that every trial needs, in this order; importing them touches no device.
# Torch's optimizers import Dynamo when they are built.
TRIAL_IMPORTS = (
    "torch",
    "torch._dynamo",
    "autotune.trials.rank",
    "autotune.trials.probing.probe",
)
# The same for trials of a command that runs a Python script.
COMMAND_IMPORTS = (
    "torch",
    "torch._dynamo",
    "autotune.trials.command.launch",
    "autotune.trials.command.hooks",
)
# The modules that only some trials need: those that compile, check numerics or shard. They take
# longer than the others together.
LATER_IMPORTS = (
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "autotune.trials.numerics.check",
)


class ForkServerProcess:
    """The fork server's process, a context manager that ends it and all its jobs.

    The constructor starts it and returns at once; jobs wait until it is ready.

    Args:
        resources: of the run; its token and its folder are used.
        environment: of the jobs; None: this process's own.
        cores: the CPU cores it may use, from which torch takes its number of threads; None: all.
        imports: modules to import first.
        guessed: modules to import next, unless that makes the process unfit to fork.
    """

    def __init__(
        self,
        resources: RunResources,
        *,
        environment: Mapping[str, str] | None = None,
        cores: frozenset[int] | None = None,
        imports: tuple[str, ...] = (),
        guessed: tuple[str, ...] = (),
    ) -> None:
        self.resources = resources
        folder = tempfile.mkdtemp(dir=resources.folder)
        self.address = str(Path(folder, "fork"))
        base = os.environ if environment is None else environment
        self._environment = {**base, **resources.environment, **import_path()}
        self._cores = cores
        self._first = {"imports": imports, "guessed": guessed}
        self._modules: tuple[str, ...] = ()
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        listener = socket.socket(socket.AF_UNIX)
        with listener, Path(self.address).with_name("log").open("ab") as log:
            listener.bind(self.address)
            listener.listen()
            allowed = None if self._cores is None else sorted(self._cores)
            options = {
                "socket": listener.fileno(),
                "cores": allowed,
                "folder": str(self.resources.folder),
                **self._first,
            }
            return subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-P", "-m", "autotune.dispatch.fork_server", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def import_modules(self, modules: tuple[str, ...]) -> None:
        """Import `modules` in the server before the next job; errors are ignored."""
        self._modules = tuple(dict.fromkeys((*self._modules, *modules)))
        _import(self.address, modules)

    def restart_if_unusable(self) -> None:
        """Start the server again with all its imports, if it was killed or stopped."""
        if self._process.poll() is None and not is_stopped(self._process.pid):
            return
        self.close()
        Path(self.address).unlink()
        self._process = self._start()
        _import(self.address, self._modules)

    def kill(self) -> None:
        """Kill the server with its jobs, because it hangs."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the server; it is in the middle of an import, maybe. Safe to call twice."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _import(address: str, modules: tuple[str, ...]) -> None:
    with _connect(address) as connection:
        connection.send_bytes(pickle.dumps((IMPORT, modules)))


class ForkedJob:
    """A job that a fork server runs, a context manager that kills it if it still runs.

    Raises:
        ClusterError: when the fork server is gone.
    """

    def __init__(self, address: str, job: Job) -> None:
        self._address = address
        self._control = _connect(address)
        self._items, writer = Pipe(duplex=False)
        self._pid: int | None = None
        try:
            with writer:
                self._control.send_bytes(pickle.dumps((RUN, job.token, pickle.dumps(job))))
                send_handle(self._control, writer.fileno(), None)
        except OSError as error:
            self.close()
            raise _server_gone(address) from error

    def has_begun(self, timeout_s: float) -> bool:
        """Return whether its process exists, after at most `timeout_s`.

        A server that is still importing starts it later.
        """
        return self._pid is not None or self._control.poll(timeout_s)

    def pid(self) -> int:
        """Wait until the process exists, and return its id, which is that of its session, too."""
        if self._pid is None:
            self._pid = self._receive()
        return self._pid

    def items(self, timeout_s: float | None = None) -> Iterator[Any]:
        """Yield what the job yields, then its `Exit`; stop `timeout_s` after the beginning.

        It ends with the process, not with the pipe, which a child of the process may hold open.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        if timeout_s is not None and not self.has_begun(timeout_s):
            return
        self.pid()
        sources = [self._control, self._items]
        while self._control not in (ready := wait(sources, _left_s(until))):
            if not ready:
                return
            try:
                yield self._items.recv()
            except EOFError:
                sources.remove(self._items)
        code = self._receive()
        yield from self._buffered_items()
        yield Exit(code=code)

    def _buffered_items(self) -> Iterator[Any]:
        os.set_blocking(self._items.fileno(), False)
        with contextlib.suppress(EOFError, OSError):  # the last item may be incomplete
            while self._items.poll():
                yield self._items.recv()

    def _receive(self) -> int:
        try:
            number: int = self._control.recv()
        except (EOFError, OSError) as error:
            raise _server_gone(self._address) from error
        return number

    def close(self) -> None:
        """Disconnect; the server then kills the job's processes. Safe to call twice."""
        self._control.close()
        self._items.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _connect(address: str) -> Connection:
    try:
        connection: Connection = Client(address, family="AF_UNIX")
    except OSError as error:
        raise _server_gone(address) from error
    return connection


def _server_gone(address: str) -> ClusterError:
    return ClusterError(f"the process that starts trials is gone (nothing answers at {address})")
