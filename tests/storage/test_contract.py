"""Every store that autotune ships keeps the contract of stores."""

import pytest

from autotune.storage.memory import MemoryStore
from autotune.storage.testing import StoreContract


class TestSqlStore(StoreContract):
    """In SQLite and PostgreSQL: the folder's fixture `store` is one in each of them."""


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
