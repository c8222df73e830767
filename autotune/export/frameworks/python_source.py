"""Python source of values, statements and imports, for tools that are configured in Python."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def source(value: Any) -> str:
    """Return the expression for a plain value, with strings in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def returned_dict(entries: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a statement that returns a dict of these expressions."""
    yield "return {"
    for name, expression in entries.items():
        yield f'    "{name}": {expression},'
    yield "}"


def indented(statements: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the statements, one level deeper."""
    for line in "\n".join(statements).splitlines():
        yield f"    {line}".rstrip()


def used(modules: Iterable[str], text: str) -> list[str]:
    """Return the imports of those modules that the source uses by their full names."""
    return [f"import {module}" for module in modules if f"{module}." in text]
