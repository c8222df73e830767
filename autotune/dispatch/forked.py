"""The near end of the fork server: starts it, hands it jobs, hears how they go and end."""

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Self

from autotune.dispatch.fork_server import IMPORT, RUN
from autotune.dispatch.import_path import import_path
from autotune.dispatch.job import Exit, Job
from autotune.dispatch.mark import Scope
from autotune.errors import ClusterError

# What trials need, in the order in which they need it; nothing here touches a device.
TRIAL_IMPORTS = ("torch", "autotune.trials.rank", "autotune.trials.probing.probe")
COMPILER_IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx")


class ForkServer:
    """A process that has imported what trials need. A context manager; gone when closed.

    Starting returns at once; jobs wait until it is ready. What it runs dies with it.

    Args:
        scope: to which the server and all its jobs belong.
        environment: of the jobs; None: this process's own.
        cores: those it may use; torch takes their number for its threads.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        environment: Mapping[str, str] | None = None,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.scope = scope
        folder = tempfile.mkdtemp(dir=scope.folder)
        self.address = str(Path(folder, "fork"))
        base = os.environ if environment is None else environment
        self._environment = {**base, **scope.marks, **import_path()}
        self._cores = cores
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
                "folder": str(self.scope.folder),
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

    def prepare(self, modules: tuple[str, ...]) -> None:
        """Import `modules` before the next job; errors do not matter."""
        self._modules = tuple(dict.fromkeys((*self._modules, *modules)))
        _import(self.address, modules)

    def revive(self) -> None:
        """Start the server again with all its imports, if something has killed it."""
        if self._process.poll() is None:
            return
        self.close()
        Path(self.address).unlink()
        self._process = self._start()
        _import(self.address, self._modules)

    def close(self) -> None:
        """Kill the server; it is in the middle of an import, maybe. Safe to call twice."""
        self._process.kill()
        self._process.wait()
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


class Forked:
    """A job on its way to a process of its own. A context manager; killed when left early.

    Raises:
        ClusterError: when the server is gone.
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
            raise _lost(address) from error

    def is_begun(self, timeout_s: float) -> bool:
        """Return whether the server has come to it; it may import for a while before."""
        return self._pid is not None or self._control.poll(timeout_s)

    def pid(self) -> int:
        """Return the process's id, and its session's; waits until the server has forked it."""
        if self._pid is None:
            self._pid = self._receive()
        return self._pid

    def items(self, timeout_s: float | None = None) -> Iterator[Any]:
        """Yield what the job yields, then its `Exit`; stop early after `timeout_s` of silence.

        A process that the job forked may hold the pipe open, so its end is not waited for.
        """
        if timeout_s is not None and not self.is_begun(timeout_s):
            return
        self.pid()
        sources = [self._control, self._items]
        while self._control not in (ready := wait(sources, timeout_s)):
            if not ready:
                return
            try:
                yield self._items.recv()
            except EOFError:
                sources.remove(self._items)
        code = self._receive()
        yield from self._rest()
        yield Exit(code=code)

    def _rest(self) -> Iterator[Any]:
        os.set_blocking(self._items.fileno(), False)
        with contextlib.suppress(EOFError, OSError):  # the last word may be torn
            while self._items.poll():
                yield self._items.recv()

    def _receive(self) -> int:
        try:
            number: int = self._control.recv()
        except (EOFError, OSError) as error:
            raise _lost(self._address) from error
        return number

    def close(self) -> None:
        """Let go of the job; the server kills what is left of it. Safe to call twice."""
        self._control.close()
        self._items.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _connect(address: str) -> Connection:
    try:
        connection: Connection = Client(address, family="AF_UNIX")
    except OSError as error:
        raise _lost(address) from error
    return connection


def _lost(address: str) -> ClusterError:
    return ClusterError(f"the process that starts trials is gone (nothing answers at {address})")
