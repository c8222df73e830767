"""The catalogue of knobs: a module for each family, and all that is known of a knob in its entry.

To add a knob: an entry in its family's module here, the function that applies it in the module of
the same name in `trials/applying/`, and a test; docs/adding-a-knob.md goes through one. A knob's
values start with the baseline, what the user's own code does without autotune.
"""

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs import (
    batch,
    compiler,
    graphs,
    host,
    layout,
    loader,
    memory,
    offload,
    optimizer,
    precision,
    ranks,
)
from autotune.search_space.knobs.compiler import is_compiled
from autotune.search_space.knobs.knob import Conflict, Knob, Numerics
from autotune.search_space.knobs.users import user_knobs
from autotune.search_space.plan import Plan, Value

FAMILIES = (
    compiler,
    precision,
    batch,
    loader,
    memory,
    layout,
    optimizer,
    graphs,
    host,
    ranks,
    offload,
)
CATALOGUE: tuple[Knob, ...] = tuple(knob for family in FAMILIES for knob in family.KNOBS)
BY_NAME: dict[str, Knob] = {knob.name: knob for knob in CATALOGUE}
CONFLICTS: tuple[Conflict, ...] = tuple(c for knob in CATALOGUE for c in knob.conflicts)
GUARDED: tuple[Value, ...] = tuple(value for knob in CATALOGUE for value in knob.guarded)

__all__ = [
    "BY_NAME",
    "CATALOGUE",
    "CONFLICTS",
    "FAMILIES",
    "GUARDED",
    "Knob",
    "Numerics",
    "conflict",
    "is_compiled",
    "user_knobs",
]


def conflict(plan: Plan, facts: WorkloadFacts) -> Conflict | None:
    """Return the first combination in the plan that cannot run, None for a plan that can."""
    return next((one for one in CONFLICTS if one.found(plan, facts)), None)
