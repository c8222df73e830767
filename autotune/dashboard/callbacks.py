"""Callbacks that leave the server free to answer others meanwhile."""

import functools
from collections.abc import Callable
from typing import Any

from anyio import to_thread
from dash import Dash


def answers(
    app: Dash, *dependencies: Any, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a callback of the page, run in a thread: the database may take its time."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def in_thread(*args: Any) -> Any:
            return await to_thread.run_sync(functools.partial(function, *args))

        app.callback(*dependencies, **options)(in_thread)
        return function

    return register
