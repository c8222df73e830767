"""Checks the knobs and values of a plan file against the catalogue of knobs."""

from collections.abc import Mapping
from typing import Any

from autotune.errors import PlanError, nearest
from autotune.search_space.knobs import BY_NAME, Knob
from autotune.search_space.plan import Plan, Value, spell


def checked_plan(knobs: Mapping[str, Any], user_knobs: Mapping[str, Any]) -> Plan:
    """Return a plan of autotune's knobs and the workload's own knobs.

    Values must exist; whether this machine can run them is checked when its space is built.

    Raises:
        PlanError: for an unknown knob or value, with the nearest one.
    """
    known = {name: _checked(_knob(name), value) for name, value in knobs.items()}
    return Plan.of(known | {name: _own(name, value) for name, value in user_knobs.items()})


def split_plan(plan: Plan) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the values of autotune's knobs, and those of the workload's own knobs."""
    known = {name: value for name, value in plan.items if name in BY_NAME}
    return known, {name: value for name, value in plan.items if name not in BY_NAME}


def _knob(name: str) -> Knob:
    if name not in BY_NAME:
        raise PlanError(
            f"unknown knob {name!r}{nearest(name, BY_NAME)} "
            "(write a knob of the workload's own under user_knobs)"
        )
    return BY_NAME[name]


def _checked(knob: Knob, value: Any) -> Value:
    for candidate in knob.known:
        if spell(candidate) == spell(value):
            return candidate
    if knob.any_count or not knob.known:
        return _count(knob, value)
    raise PlanError(_impossible(knob.name, value, knob.known))


def _count(knob: Knob, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= knob.least:
        return value
    shown = spell(value)
    raise PlanError(f"{knob.name}={shown} is not possible; use a whole number from {knob.least}")


def _impossible(name: str, value: Any, known: tuple[Value, ...]) -> str:
    spelled = [spell(v) for v in known]
    hint, listed = nearest(spell(value), spelled), ", ".join(spelled)
    return f"{name}={spell(value)} is not possible{hint} (values: {listed})"


def _own(name: str, value: Any) -> Value:
    if name in BY_NAME:
        raise PlanError(f"{name} is a knob of autotune; write it under plan")
    if not isinstance(value, str | int | float | bool):
        raise PlanError(
            f"user_knobs: {name} is {value!r}; a knob's value is a string, a number or a boolean"
        )
    return value
