"""User's knobs: what the workload itself offers in its `KNOBS`."""

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    UNKNOWN_MEMORY,
    Knob,
    MeasuredOn,
    Numerics,
    Reasons,
    no_speed,
)
from autotune.search_space.plan import Value


def user_knobs(facts: WorkloadFacts) -> tuple[Knob, ...]:
    """Return the workload's own KNOBS as catalogue entries.

    They reach `build_model(**values)`, so what they change is the user's decision: EXACT, for
    the numerics filter never to drop a choice that the user wrote down.
    """
    return tuple(_user_knob(name, values) for name, values in facts.user_knobs)


def _user_knob(name: str, values: tuple[Value, ...]) -> Knob:
    return Knob(
        name=name,
        doc="the workload's own knob",
        numerics=Numerics.EXACT,
        values=lambda site: values,
        known=values,
        speed=no_speed,
        doubt=0.15,  # the user wrote it down because it may matter
        acts_on=frozenset(),
        saves=None,
        memory=UNKNOWN_MEMORY,
        recompiles_on=ANY_DEVICE,
        measured_on=MeasuredOn.ONE_DEVICE,
        reasons=Reasons(),
    )
