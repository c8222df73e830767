"""Registers callbacks of pages so that a slow one does not block the server."""

import functools
from collections.abc import Callable
from typing import Any

from anyio import to_thread
from dash import Dash


def callback_in_thread(
    app: Dash, *dependencies: Any, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function as a Dash callback that runs in a thread."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def in_thread(*args: Any) -> Any:
            return await to_thread.run_sync(functools.partial(function, *args))

        app.callback(*dependencies, **options)(in_thread)
        return function

    return register
