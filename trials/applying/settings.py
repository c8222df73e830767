"""Process-wide settings, each as a context that puts the value of before back at its end."""

import contextlib
from collections.abc import Iterator
from typing import Any

Setting = contextlib.AbstractContextManager[None]


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, *, value: Any) -> Iterator[None]:
    """Set an attribute of an object or a module, and restore it at the end."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
