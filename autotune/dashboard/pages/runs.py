"""The page that lists all runs, newest first."""

from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import dcc
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.report.as_json import run_view
from autotune.report.words import UNKNOWN, cell, duration, samples, speedup

PAGE = 50  # runs on a page
COLUMNS = (
    "Run",
    "State",
    "Workload",
    "Machine",
    "Trials",
    "Baseline (samples/s)",
    "Winner (samples/s)",
    "Speed-up (95 % interval)",
    "Time used",
    "Started",
)
NUMERIC = COLUMNS[4:9]


def page(source: Source, visit: Visit) -> Component:
    """Return the page; `?page=2` has older runs."""
    number = (
        max(int(visit.query.get("page", "1")), 1)
        if visit.query.get("page", "1").isdecimal()
        else 1
    )
    with source.store() as store:
        runs = store.runs(limit=PAGE, offset=(number - 1) * PAGE)
        total = store.num_runs()
    if not total:
        return parts.section("No run yet", parts.commands(["autotune run MODEL --budget 15m"]))
    rows = [_row(run_view(run), visit) for run in runs]
    return dmc.Box(
        [
            parts.title("Runs", dmc.Badge(str(total), variant="light")),
            parts.table(COLUMNS, rows, NUMERIC),
            _page_links(number, -(-total // PAGE)),
        ]
    )


def _row(run: dict[str, Any], visit: Visit) -> list[Any]:
    winner = run["winner"]
    return [
        parts.link(run["name"], f"/runs/{run['id']}"),
        parts.badge(run["state"]),
        Path(run["workload"]).name,
        cell(run["hardware"].get("device_name")),
        str(run["num_trials"]),
        samples(winner and winner["baseline_throughput"]),
        samples(winner and winner["throughput"]),
        speedup(winner) if winner else UNKNOWN,
        f"{duration(run['used_s'])} of {duration(run['budget_s'])}",
        visit.time(run["created_at"]),
    ]


def _page_links(number: int, last: int) -> Component | None:
    links = []
    if number > 1:
        links.append(dcc.Link("Newer", href=f"/?page={number - 1}"))
    if number < last:
        links.append(dcc.Link("Older", href=f"/?page={number + 1}"))
    return dmc.Group(links, mt="md") if links else None
