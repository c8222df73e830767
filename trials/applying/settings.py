"""Process-wide settings, each as a context that puts the value of before back at its end."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

Setting = contextlib.AbstractContextManager[None]


def compiled_apart(reason: str) -> Setting:
    """Let torch keep what it compiles now apart from all that it compiled without `reason`.

    It is for settings that change a compiled graph and are not in the key under which torch's
    cache keeps it: the cache would return a graph of another setting.
    """
    tag = f"{torch.compiler.config.cache_key_tag} {reason}"
    return attribute_set(torch.compiler.config, "cache_key_tag", value=tag)


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, *, value: Any) -> Iterator[None]:
    """Set an attribute of an object or a module, and restore it at the end."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
