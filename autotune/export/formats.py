"""Reads and writes the formats of plan files and of configurations for other tools."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from autotune.errors import PlanError, nearest

SUFFIXES = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".py": "python",
    ".env": "shell",
    ".sh": "shell",
}
"""The formats by the suffixes of files."""
FORMATS = ("yaml", "json", "toml")
"""The formats of plan files."""


class _PlainLoader(yaml.SafeLoader):
    """Reads `off`, `on`, `yes` and `no` as words, as YAML 1.2 does: `compile_mode: off`."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML keeps its table so
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag != "tag:yaml.org,2002:bool" or first in "tTfF"
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def format_of(path: Path, name: str | None = None, formats: Sequence[str] = FORMATS) -> str:
    """Return `name` if it is among `formats`, or without a name the format of the file's suffix.

    Raises:
        PlanError: for a name or suffix that is not of these formats.
    """
    if name is not None:
        if name not in formats:
            listed = ", ".join(formats)
            raise PlanError(f"unknown format {name!r}{nearest(name, formats)} ({listed})")
        return name
    suffix = path.suffix.lower()
    suffixes = [known for known, format_name in SUFFIXES.items() if format_name in formats]
    if suffix not in suffixes:
        raise PlanError(
            f"{path} ends in none of {', '.join(suffixes)}{nearest(suffix, suffixes)}; "
            "rename it, or name the format of a new file with --format"
        )
    return SUFFIXES[suffix]


def parse(text: str, format_name: str) -> Any:
    """Return the plain values that `text` holds.

    Raises:
        ValueError: when it is not of that format, with the place.
    """
    try:
        return _PARSERS[format_name](text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def render(document: Mapping[str, Any], format_name: str, header: Sequence[str]) -> str:
    """Return `document` as text, with `header` as comments above it where the format has any."""
    body = _RENDERERS[format_name](document)
    if format_name == "json":
        return body
    return f"{comment(header)}\n{body}"


def comment(lines: Sequence[str]) -> str:
    """Return the lines as comments of YAML, TOML, Python or a shell."""
    return "".join(f"# {line}".rstrip() + "\n" for line in "\n".join(lines).splitlines())


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_PlainLoader)  # noqa: S506  a SafeLoader with fewer booleans


def _render_yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=99)


def _render_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "yaml": _parse_yaml,
    "json": json.loads,
    "toml": tomllib.loads,
}
_RENDERERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "yaml": _render_yaml,
    "json": _render_json,
    "toml": tomli_w.dumps,
}
