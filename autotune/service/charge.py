"""Takes charge of a store's jobs: one server at a time starts them."""

from collections.abc import Callable

from autotune.clock import Clock, SystemClock
from autotune.errors import ServerError
from autotune.service.server import BEAT_S
from autotune.storage.driver import this_driver
from autotune.storage.lease import Holder, Lease
from autotune.storage.sql import SqlStore

SILENCE_S = 4 * BEAT_S
"""Seconds after which a server on another machine that has said nothing is taken for dead."""


def take_charge(
    store: SqlStore,
    address: str,
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> Lease:
    """Return the lease on a store's jobs, which this server holds from now on.

    A dead server of this machine is succeeded at once, one of another machine after `SILENCE_S`.

    Args:
        store: open for writing.
        address: where this server listens, for the message to a second one.
        say: told when this waits.
        clock: None is the system's.

    Raises:
        ServerError: when another server is in charge.
    """
    lease = store.lease(this_driver(), address)
    holder = lease.take()
    if holder is None:
        return lease
    if holder.lives is None:
        say(f"waiting {SILENCE_S:.0f} s, to see whether {_words(holder)} still lives")
        (clock or SystemClock()).sleep(SILENCE_S)
        if lease.take(seen=holder) is None:
            return lease
    raise ServerError(
        f"{_words(holder)} is in charge of this store, and only one may be; use that one, end it "
        "first, or name another store with --storage"
    )


def _words(holder: Holder) -> str:
    host, pid, _ = holder.process.rsplit(":", 2)
    return f"the server at {holder.address} (process {pid} on {host})"
