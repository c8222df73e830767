"""Who sends the present request, by its token, and what that token allows."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from anyio import to_thread

from autotune.dashboard.guard import Gate
from autotune.dashboard.source import BUSY_TIMEOUT_S, Source
from autotune.errors import NotAllowedError
from autotune.service.tokens import digest
from autotune.storage.access import Role, TokenRecord
from autotune.storage.sql import SqlStore, open_store

KEPT_S = 2.0
"""Seconds for which a token that was found valid is not looked up again; also the time after which
a revoked one has no force."""
_VISITOR: ContextVar[TokenRecord | None] = ContextVar("visitor", default=None)


class Visitors:
    """Lets in requests with a token of the store.

    Args:
        url: of the store.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._known: dict[str, tuple[float, TokenRecord]] = {}

    @property
    def gate(self) -> Gate:
        """The gate for the guard of the application."""
        return Gate(
            admits=self._admit,
            how="open the server's address with ?token=... once; `autotune token create` on the "
            "server makes one",
        )

    async def _admit(self, given: str) -> bool:
        """Look a token up; it is the visitor's for the rest of the request."""
        known = digest(given)
        found_at, token = self._known.get(known, (0.0, None))
        if time.monotonic() - found_at > KEPT_S:
            self._known.pop(known, None)
            token = await to_thread.run_sync(self._find, known)
            if token is not None:
                self._known[known] = (time.monotonic(), token)
        _VISITOR.set(token)
        return token is not None

    def _find(self, known: str) -> TokenRecord | None:
        with closing(open_store(self._url, read_only=True, busy_s=BUSY_TIMEOUT_S)) as store:
            return store.tokens.find(known)


def visitor() -> TokenRecord:
    """Return the token of the present request.

    Raises:
        NotAllowedError: when it has none.
    """
    token = _VISITOR.get()
    if token is None:
        raise NotAllowedError("this needs a token")
    return token


def require(role: Role) -> TokenRecord:
    """Return the token of the present request if its role includes `role`.

    Raises:
        NotAllowedError: when it does not.
    """
    token = visitor()
    if not token.role.includes(role):
        raise NotAllowedError(
            f"the token {token.name!r} may {token.role.value}; this needs one that may "
            f"{role.value}: ask whoever administers the server"
        )
    return token


@dataclass(frozen=True, slots=True)
class GuardedSource(Source):
    """A store that only visitors write to who may submit jobs.

    Attributes:
        writer: the store, open for writing in turns with the server's other threads.
    """

    writer: SqlStore

    @contextmanager
    def store_to_write(self) -> Iterator[SqlStore]:
        """Open the store for what visitors change.

        Raises:
            NotAllowedError: when the visitor's token only allows to look.
            StoreError: when the store cannot be written.
        """
        require(Role.SUBMIT)
        yield self.writer
