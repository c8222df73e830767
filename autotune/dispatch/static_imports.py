"""Reads which installed modules a workload imports, without running it."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from autotune.dispatch.fork_server import ATTRIBUTE


def static_imports(path: Path) -> tuple[str, ...]:
    """Return what the file and its neighbours import at their top level of installed packages.

    An entry is a module, or a module and a name that is taken from it: some packages import what
    is behind a name only when it is asked for. Nothing of a file that is missing or no Python.
    """
    return tuple(dict.fromkeys(_imported(path.absolute(), set())))


def _imported(path: Path, read: set[Path]) -> Iterator[str]:
    read.add(path)
    for entry in _entries(path):
        top = entry.partition(ATTRIBUTE)[0].partition(".")[0]
        own = [path.with_name(f"{top}.py"), path.with_name(top) / "__init__.py"]
        files = [file for file in own if file.is_file()]
        for file in (f for f in files if f not in read):
            yield from _imported(file, read)
        if not files and not path.with_name(top).is_dir() and _is_installed(top):
            yield entry


def _entries(path: Path) -> Iterator[str]:
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                yield f"{statement.module}{ATTRIBUTE}{alias.name}"


def _is_installed(package: str) -> bool:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and "site-packages" in (spec.origin or "")
