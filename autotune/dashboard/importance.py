"""What the measured trials tell of each knob's influence, and where they cannot tell."""

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.report.words import samples
from autotune.storage.statistics import KnobEffect, ValueEffect

MIN_TRIALS = 3
"""Trials that each of two values needs before they are compared: of fewer, other knobs that
differ, and chance, decide."""


def importance(effects: Sequence[KnobEffect], num_measured: int) -> Component:
    """Return an entry for each knob that the trials tell something of, and name the others."""
    known = [effect for effect in effects if _can_tell(effect)]
    groups = _indistinguishable(known)
    unknown = [effect.knob for effect in effects if not _can_tell(effect)]
    if not groups:
        return parts.placeholder(_too_few(num_measured))
    num_used = sum(value.num_trials for value in effects[0].values)
    notes = [f"From {num_used} of {num_measured} measured trials."]
    if unknown:
        notes.append(f"Too few trials to tell: {', '.join(unknown)}.")
    items = [_item(group) for group in groups]
    first = groups[0][0].knob
    return dmc.Box(
        [
            dmc.Accordion(items, multiple=True, value=[first], order=3),
            parts.placeholder(" ".join(notes)),
        ]
    )


def _too_few(num_measured: int) -> str:
    return (
        f"{num_measured} measured trials cannot tell: no two values of a knob have "
        f"{MIN_TRIALS} trials each. A longer --budget tries more."
    )


def _can_tell(effect: KnobEffect) -> bool:
    return sum(value.num_trials >= MIN_TRIALS for value in effect.values) > 1


def _indistinguishable(effects: Sequence[KnobEffect]) -> list[list[KnobEffect]]:
    """Return the effects, those of knobs that always changed together in one list."""
    groups: dict[tuple[tuple[int, float, float], ...], list[KnobEffect]] = {}
    for effect in effects:
        # Values that stand for the same trials have the same number, mean and fastest of them.
        key = tuple(sorted((v.num_trials, v.mean, v.fastest) for v in effect.values))
        groups.setdefault(key, []).append(effect)
    return list(groups.values())


def _item(group: Sequence[KnobEffect]) -> Component:
    knobs = ", ".join(effect.knob for effect in group)
    told = f"{100 * group[0].explained:.0f} % of the variance"
    if len(group) > 1:
        told += "; they changed together, so that trials cannot tell which of them it is"
    best = max(value.fastest for value in group[0].values)
    columns = ("Value", "Trials", "Slowest", "Mean", "Fastest", "From slowest to fastest")
    tables = [
        parts.table(columns, [_row(value, best) for value in effect.values], columns[1:5])
        for effect in group
    ]
    heading = dmc.Group([dmc.Text(knobs, fw=600), dmc.Text(told, c="dimmed", size="sm")])
    return dmc.AccordionItem(
        [dmc.AccordionControl(heading), dmc.AccordionPanel(dmc.Stack(tables))],
        value=group[0].knob,
    )


def _row(value: ValueEffect, best: float) -> list[parts.Child]:
    return [
        value.value,
        str(value.num_trials),
        samples(value.slowest),
        samples(value.mean),
        samples(value.fastest),
        parts.range_bar(value.slowest, value.mean, value.fastest, best),
    ]
