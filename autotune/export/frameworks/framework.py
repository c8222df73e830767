"""How a plan becomes the configuration of another tool: rules that turn settings into keys."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.training import Training
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Value, spell

Keys = Mapping[str, Any]
"""Keys of a tool with their values; sections are nested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a tool's configuration says of one setting.

    Attributes:
        keys: its keys; empty where the tool does so by default, or has none.
        instead: what the user does for what keys cannot say; None: they say all.
    """

    keys: Keys = field(default_factory=dict)
    instead: str | None = None


Rule = Callable[[Value, Training], Said]
"""Returns what a tool's configuration says of a value of one knob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A setting that a configuration does not hold, or not all of it.

    Attributes:
        knob, value: the setting.
        instead: what the user does about it.
    """

    knob: str
    value: Value
    instead: str

    @property
    def words(self) -> str:
        """The setting and what to do about it, on one line."""
        return f"{self.knob}={spell(self.value)}: {self.instead}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A format that a tool reads, with the keys that it has there.

    Attributes:
        rules: for each knob that has keys.
        begin: returns the keys that the tool needs whatever the plan says.
        render: returns the text of the file, given keys and training; comments go above it.
        usage: returns how to use the file of this name, as lines of a comment.
        has_comments: whether the format has any.
    """

    rules: Mapping[str, Rule]
    render: Callable[[Keys, Training], str]
    usage: Callable[[str, Training], Iterable[str]]
    begin: Callable[[Training], Keys] = lambda training: {}
    has_comments: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Another tool, for which plans are written.

    Attributes:
        name: as `--for` takes it.
        made_for: the tool and the version whose keys are used.
        file_name: where the configuration goes without `--out`.
        dialects: by format; without a known suffix, that of `file_name` is used.
    """

    name: str
    made_for: str
    file_name: str
    dialects: Mapping[str, Dialect]


def said_in(training: Training, dialect: Dialect) -> tuple[Keys, tuple[LeftOut, ...]]:
    """Return the keys for a training's plan, and what they leave out."""
    keys: Keys = dialect.begin(training)
    left_out = []
    for knob, value in sorted(training.plan.items, key=_place):
        said = _say(knob, value, training, dialect)
        keys = merged(keys, said.keys)
        if said.instead is not None:
            left_out.append(LeftOut(knob=knob, value=value, instead=said.instead))
    return keys, tuple(left_out)


def _place(setting: tuple[str, Value]) -> int:
    """Return the knob's place in the catalogue; the workload's own knobs come last."""
    names = list(BY_NAME)
    return names.index(setting[0]) if setting[0] in BY_NAME else len(names)


def _say(knob: str, value: Value, training: Training, dialect: Dialect) -> Said:
    rule = dialect.rules.get(knob)
    if rule is not None and (knob, value) == ("precision", "fp8"):
        # No tool has a key for it; all have one for bf16, in which the rest is computed.
        return replace(rule("bf16", training), instead=in_code(knob, value, training))
    if rule is not None:
        return rule(value, training)
    return Said(instead=in_code(knob, value, training))


def merged(keys: Keys, more: Keys) -> dict[str, Any]:
    """Return both together; in a section of both, their keys stand side by side."""
    both = dict(keys)
    for name, value in more.items():
        old = both.get(name)
        is_section = isinstance(old, Mapping) and isinstance(value, Mapping)
        both[name] = merged(old, value) if is_section and old is not None else value
    return both


def say(*sections: str, **keys: Any) -> Said:
    """Return that these keys say the setting, inside of the named sections."""
    inside: dict[str, Any] = keys
    for section in reversed(sections):
        inside = {section: inside}
    return Said(keys=inside)


def key(name: str, *sections: str) -> Rule:
    """Return the rule for a setting that one key takes as it is."""
    return lambda value, training: say(*sections, **{name: value})


def nothing(value: Value, training: Training) -> Said:
    """Return that there is nothing to say: another rule has said it."""
    return Said()
