"""Connects this process to a Ray cluster, without messages on the terminal."""

import ctypes
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray._private import worker as ray_worker
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from autotune.dispatch.import_path import import_path
from autotune.dispatch.mark import new_token
from autotune.errors import ClusterError

CONNECT_TIMEOUT_S = 5.0
# Ray ends a process without a word that has not reached the cluster for 60 s. A run ends by
# itself, with what it has found.
_PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}
# At least the size of the struct of sigaction(2), which is about 150 bytes on Linux.
_SIGACTION_BYTES = 512
_libc = ctypes.CDLL(None)


def connect(address: str, variables: Mapping[str, str] | None = None) -> None:
    """Connect to the cluster at `address`.

    Args:
        address: as `ray.init` takes it.
        variables: with which a private cluster was started; None: it is somebody else's.

    Raises:
        ClusterError: when nothing answers there.
    """
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        _check_reachable(address)
        with _environment(_PATIENCE | dict(variables or {})), _no_messages(), _sigterm_kept():
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                namespace=f"autotune-{new_token()}",
                runtime_env=None if variables else {"env_vars": import_path()},
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address!r} ({error}); check --ray-address, or leave it "
            "out to use a private cluster"
        ) from error


def _check_reachable(address: str) -> None:
    """Raise OSError when nothing listens there; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


def disconnect() -> None:
    """Disconnect from the cluster; the actors that this process started end."""
    ray.shutdown()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block, and make Ray read them."""
    # Ray itself sets PYTHONBREAKPOINT, to its own debugger.
    before = {name: os.environ.get(name) for name in (*values, "PYTHONBREAKPOINT")}
    os.environ.update(values)
    # Ray read its settings when it was imported, and keeps the last token that it used.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _no_messages() -> Iterator[None]:
    """Keep Ray from printing each worker's death to stdout, for connections made in the block.

    `log_to_driver=False` does not stop that; how a trial died is in its result.
    """
    listen = ray_worker.listen_error_messages
    ray_worker.listen_error_messages = lambda worker, threads_stopped: None
    try:
        yield
    finally:
        ray_worker.listen_error_messages = listen


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Give SIGTERM the handler back that it had before the block.

    Ray sets one that writes a stack and ends the process. Its native code does so by sigaction(2),
    of which Python does not know; in the main thread it sets another one by Python.
    """
    handler = signal.getsignal(signal.SIGTERM)
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    _libc.sigaction(signal.SIGTERM, None, action)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        _libc.sigaction(signal.SIGTERM, action, None)
