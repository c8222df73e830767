"""Reads what a workload imports, and whether it prepares its environment, without running it."""

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


def sets_environment(path: Path) -> bool:
    """Whether the file or one that it imports beside it may set environment variables.

    Libraries may look at those when they are imported, so none may be imported before.
    """
    read: set[Path] = set()
    tuple(_imported(path.absolute(), read))
    return any(_may_set_environment(node) for file in read for node in ast.walk(_parsed(file)))


def _may_set_environment(node: ast.AST) -> bool:
    """Whether a node is `os.environ[...] = ...`, or a call of what changes the environment."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        return any(isinstance(t, ast.Subscript) and _is_environ(t.value) for t in targets)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load_dotenv"
    if node.func.attr in ("putenv", "unsetenv"):
        return True
    return node.func.attr in ("update", "setdefault", "pop") and _is_environ(node.func.value)


def _is_environ(node: ast.expr) -> bool:
    return "environ" in (getattr(node, "attr", ""), getattr(node, "id", ""))


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
    for statement in _parsed(path).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                yield f"{statement.module}{ATTRIBUTE}{alias.name}"


def _parsed(path: Path) -> ast.Module:
    """Return the file's syntax tree, an empty one where it is missing or no Python."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _is_installed(package: str) -> bool:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and "site-packages" in (spec.origin or "")
