"""The section that shows a plan as values, beside any other plan, and as a file."""

from collections.abc import Iterable
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.api import PREFIX
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import NotFoundError
from autotune.export.contents import PlanFile, read_plan_file
from autotune.export.formats import FORMATS
from autotune.export.plan_file import dump_plan
from autotune.report.words import knob_value
from autotune.search_space.plan import Plan
from autotune.storage.records import RunRecord
from autotune.storage.sql import SqlStore

MAX_TRIALS = 300  # to compare with, the latest
MAX_RUNS = 50  # whose winners are to compare with, the newest
BASELINE = "baseline"


def plan_section(store: SqlStore, run: RunRecord, trial: int | None, visit: Visit) -> Component:
    """Return the plan of a trial, or of the winner, with the choice of one to compare it with.

    `?with=trial:2` in the address chooses it.

    Raises:
        UsageError: when there is no winner.
    """
    file = read_plan_file(store, run, trial)
    name = "plan" if trial is None else f"trial-{trial}"
    choices = _others(store, run, trial)
    asked = visit.query.get("with")
    known = {item["value"] for group in choices for item in group.get("items", ())}
    other = dmc.Select(
        id="plan-other",
        label="Compare with",
        data=choices,
        value=asked if asked in known else BASELINE,
        searchable=True,
        allowDeselect=False,
        w=280,
    )
    return dmc.Stack(
        [
            dcc.Store(id="plan-of", data={"run": run.id, "trial": trial}),
            _files(file, run.id, trial, name),
            other,
            html.Div(id="plan-values"),
            _folded(dump_plan(file, "yaml", f"{name}.yaml")),
        ]
    )


def _files(file: PlanFile, run_id: int, trial: int | None, name: str) -> Component:
    """Return buttons that copy the plan, and links that download it in each format."""
    which = "" if trial is None else f"&trial={trial}"
    text = dump_plan(file, "yaml", f"{name}.yaml")
    links = [
        parts.server_link(
            f"{name}.{format_name}",
            f"{PREFIX}/runs/{run_id}/plan?format={format_name}{which}",
            download=f"{name}.{format_name}",
        )
        for format_name in FORMATS
    ]
    copy = dmc.CopyButton(value=text, children="Copy the file", size="xs")
    return dmc.Group([copy, dmc.Text("Download:"), *links])


def _folded(text: str) -> Component:
    item = dmc.AccordionItem(
        [
            dmc.AccordionControl("The whole file, with its comments"),
            dmc.AccordionPanel(parts.text_block(text)),
        ],
        value="file",
    )
    return dmc.Accordion([item], order=3)


def _others(store: SqlStore, run: RunRecord, trial: int | None) -> list[dict[str, Any]]:
    trials = [
        {"value": f"trial:{number}", "label": f"trial {number}"}
        for number in store.statistics(run).latest(MAX_TRIALS)
        if number != trial
    ]
    winners = [
        {"value": f"run:{other.id}", "label": f"winner of {other.name}"}
        for other in store.runs(limit=MAX_RUNS)
        if other.winner is not None and (other.id != run.id or trial is not None)
    ]
    return [
        {"value": BASELINE, "label": "the baseline"},
        {"group": "Trials of this run", "items": trials},
        {"group": "Winners", "items": winners},
    ]


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callback that shows the plan beside the chosen one."""

    def values(of: dict[str, Any], other: str) -> Component:
        with source.store() as store:
            run = store.run(str(of["run"]))
            return _side_by_side(_plan(store, run, of["trial"]), *_chosen(store, run, other))

    callback_in_thread(
        app,
        Output("plan-values", "children"),
        Input("plan-of", "data"),
        Input("plan-other", "value"),
    )(values)


def _plan(store: SqlStore, run: RunRecord, trial: int | None) -> Plan:
    if trial is not None:
        return store.trial(run, trial).plan
    if run.winner is None:
        raise NotFoundError(f"run {run.name} has no winner any more; open its page again")
    return run.winner.plan


def _chosen(store: SqlStore, run: RunRecord, other: str) -> tuple[str, Plan]:
    """Return the name and the plan of what was chosen to compare with."""
    kind, _, number = other.partition(":")
    if kind == "trial":
        return f"Trial {number}", store.trial(run, int(number)).plan
    if kind == "run":
        record = store.run(number)
        return f"Winner of {record.name}", _plan(store, record, None)
    return "Baseline", run.new.baseline


def _side_by_side(plan: Plan, name: str, other: Plan) -> Component:
    differing = set(plan.diff(other))
    knobs = sorted(dict.fromkeys([*plan, *other]), key=lambda knob: (knob not in differing, knob))
    rows = [list(_row(knob, plan, other, knob in differing)) for knob in knobs]
    count = f"{len(differing)} of {len(knobs)} knobs differ." if differing else "They are equal."
    return dmc.Box([parts.placeholder(count), parts.table(("Knob", "This plan", name), rows)])


def _row(knob: str, plan: Plan, other: Plan, differs: bool) -> Iterable[parts.Child]:  # noqa: FBT001  of its knob
    for text in (knob, knob_value(plan.values.get(knob)), knob_value(other.values.get(knob))):
        yield dmc.Text(text, fw=700, inherit=True, span=True) if differs else text
