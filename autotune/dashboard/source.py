"""The store that pages show; it is opened for each request, as it may appear, change or go."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from autotune.storage.sql import SqlStore, open_store

BUSY_TIMEOUT_S = 3.0
"""How long to wait for a locked store; then the viewer sees a message."""


@dataclass(frozen=True, slots=True)
class Source:
    """Opens the store at `url`, as for `open_store`; None is the default store."""

    url: str | None

    @contextmanager
    def store(self) -> Iterator[SqlStore]:
        """Open the store for reading.

        Raises:
            StoreError: when it is missing, locked, damaged, or of another version.
        """
        with closing(open_store(self.url, read_only=True, busy_s=BUSY_TIMEOUT_S)) as opened:
            yield opened

    @contextmanager
    def store_to_write(self) -> Iterator[SqlStore]:
        """Open the store for what people write of it; nothing is created or migrated by that.

        Raises:
            StoreError: as above, and when it may not be written.
        """
        with self.store():
            pass
        with closing(open_store(self.url, busy_s=BUSY_TIMEOUT_S)) as opened:
            yield opened
