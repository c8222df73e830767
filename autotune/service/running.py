"""Runs a server until Ctrl-C: the application, and beside it the loop that starts jobs."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing

from autotune.dashboard.serve import serve
from autotune.errors import ServerError
from autotune.service.application import make_service
from autotune.service.charge import take_charge
from autotune.service.server import JobLoop, LoopThread
from autotune.service.settings import ServiceSettings
from autotune.service.webhook import Webhook
from autotune.storage.sql import SqlStore


def run_server(
    settings: ServiceSettings,
    listener: socket.socket,
    address: str,
    *,
    say: Callable[[str], None],
    started: Callable[[], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. Jobs that run go on; the next server finds them again.

    Args:
        settings: how jobs run.
        listener: where requests come in.
        address: of the listener, as others know it.
        say: told when this waits for another server.
        started: called when requests are answered.

    Raises:
        ServerError: when another server is in charge of the store, or takes charge meanwhile.
    """
    logging.basicConfig(level=logging.WARNING, format="autotune: %(message)s")
    settings.workloads.mkdir(parents=True, exist_ok=True)
    settings.folder.chmod(0o700)
    # uvicorn raises a signal again when it has ended; as an exception, it leads through `finally`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with closing(settings.open_store()) as store:
        lease = take_charge(store, address, say)
        is_lost = threading.Event()

        def lost() -> None:
            is_lost.set()
            os.kill(os.getpid(), signal.SIGTERM)

        thread = LoopThread(lambda: _open_loop(settings, address), lease.beat, lost)
        thread.start()
        try:
            serve(make_service(settings, store, thread.wake), listener, started)
        finally:
            thread.end()
            lease.give_back()
    if is_lost.is_set():
        raise ServerError(
            "the server ended: it cannot start jobs any more, or another one took charge of the "
            "store; jobs go on, and the next server finds them"
        )


def _open_loop(settings: ServiceSettings, address: str) -> tuple[SqlStore, JobLoop]:
    webhook = None if settings.webhook is None else Webhook(settings.webhook, address)
    ended = (lambda job: None) if webhook is None else webhook.ended
    store = settings.open_store()
    return store, JobLoop(store, settings, ended)
