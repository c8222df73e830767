"""A plan: one value for every knob that applies. Trials run plans, and results belong to them."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Knob names and values in canonical order; equal plans are equal and hash alike.

    Build one with `Plan.of`, or through a `Space`, which also validates and completes it.

    Attributes:
        items: the knobs with their values.
        ranks: number of ranks that a plan file was made for; None elsewhere. Plans that differ
            only in it are equal.
        kernels: path of the file of compiled kernels that lies beside the plan file; None: none
            does. Plans that differ only in it are equal.
    """

    items: tuple[tuple[str, Value], ...]
    ranks: int | None = field(default=None, compare=False)
    kernels: str | None = field(default=None, compare=False)
    _values: dict[str, Value] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", dict(self.items))

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> "Plan":
        """Build from a mapping; order does not matter."""
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, knob: str) -> Value:
        """Return the knob's value, or raise KeyError where the knob does not apply."""
        return self._values[knob]

    def __contains__(self, knob: object) -> bool:
        """Whether the knob applies in this plan."""
        return knob in self._values

    def __iter__(self) -> Iterator[str]:
        """Iterate over the knobs' names."""
        return (name for name, _ in self.items)

    @property
    def values(self) -> Mapping[str, Value]:
        """The values by their knob's name, in canonical order."""
        return self._values

    def get(self, knob: str, default: Value) -> Value:
        """Return the knob's value, or `default` where the knob does not apply."""
        return self._values.get(knob, default)

    def diff(self, other: "Plan") -> dict[str, tuple[Value | None, Value | None]]:
        """Return `{knob: (value here, value there)}` where they differ; None: does not apply."""
        here, there = self.values, other.values
        names = [*here, *(name for name in there if name not in here)]
        return {n: (here.get(n), there.get(n)) for n in names if here.get(n) != there.get(n)}

    @property
    def digest(self) -> str:
        """Twelve hex digits that identify this plan."""
        text = json.dumps([SCHEMA_VERSION, self.items])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def spell(value: Value) -> str:
    """Return the value as the command line and the plan file write it: `true`, `64`, `bf16`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
