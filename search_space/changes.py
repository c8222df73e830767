"""What a plan changes beside another one, as people read it."""

from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Plan, Value, spell


def changes(plan: Plan, other: Plan) -> dict[str, Value | None]:
    """Return the values of `plan` that `other` does not have; None: the knob no longer applies.

    A knob that applies in `plan` alone is left out at its first value, which torch takes by
    itself: `workers=4` changes nothing else, though `prefetch=2` comes with it.
    """
    return {
        name: value
        for name, (value, before) in plan.diff(other).items()
        if before is not None or not _is_first(name, value)
    }


def describe_changes(plan: Plan, baseline: Plan) -> str:
    """Return `precision=bf16 workers=4`: what `plan` changes, or `baseline` for nothing."""
    changed = changes(plan, baseline).items()
    shown = [f"{name}={spell(value)}" for name, value in changed if value is not None]
    return " ".join(shown) or "baseline"


def _is_first(name: str, value: Value | None) -> bool:
    return name in BY_NAME and BY_NAME[name].known[:1] == (value,)
