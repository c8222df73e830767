"""The page that runs SQL statements that can only read."""

import json
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.dashboard.trial_table import GRID_THEME
from autotune.dashboard.visit import Visit
from autotune.report.as_json import query_view
from autotune.report.tables import csv_text
from autotune.storage.query import QueryResult, read_only_query

MAX_ROWS = 1000  # shown on the page
MAX_DOWNLOAD = 100_000  # rows of a downloaded file
TIMEOUT_S = 10.0
TABLES = ("trials_wide", "runs", "trials", "windows", "plans", "notes")
EXAMPLES = {
    "Fastest plan of each precision": (
        "SELECT precision, max(throughput) AS samples_per_s, count(*) AS trials\n"
        "FROM trials_wide\nWHERE outcome = 'ok'\nGROUP BY precision\nORDER BY 2 DESC"
    ),
    "How trials ended": (
        "SELECT run, outcome, count(*) AS trials, avg(total_s) AS mean_s\n"
        "FROM trials_wide\nGROUP BY run, outcome\nORDER BY run, trials DESC"
    ),
    "Where the time of a run went": (
        "SELECT run, purpose, count(*) AS trials, sum(total_s) AS seconds,\n"
        "  sum(first_step_s) AS first_steps_s, sum(overhead_s) AS overhead_s\n"
        "FROM trials_wide\nGROUP BY run, purpose\nORDER BY run, seconds DESC"
    ),
    "What ran out of memory": (
        "SELECT run, number, requested_bytes / 1073741824.0 AS asked_gib, reason\n"
        "FROM trials_wide\nWHERE outcome = 'oom'\nORDER BY run, number"
    ),
    "Speed-ups of all runs": (
        "SELECT r.name, r.workload_path, p.speedup, p.speedup_low, p.speedup_high\n"
        "FROM plans p JOIN runs r ON r.id = p.run_id\nORDER BY p.speedup DESC"
    ),
}


def page(source: Source, visit: Visit) -> Component:
    """Return the page; a statement in the address, `?sql=...`, is answered at once."""
    first = next(iter(EXAMPLES.values()))
    statement = dmc.Textarea(
        id="sql",
        label="One SELECT statement; Ctrl+Enter runs it",
        value=visit.query.get("sql", first),
        autosize=True,
        minRows=5,
    )
    buttons = dmc.Group(
        [
            dmc.Button("Run", id="ask"),
            dmc.Button("CSV", id="as-csv", variant="default"),
            dmc.Button("JSON", id="as-json", variant="default"),
            dcc.Download(id="download"),
        ]
    )
    examples = dmc.Select(
        id="example", label="Examples", data=parts.choices(EXAMPLES), placeholder="Choose one"
    )
    return dmc.Box(
        [
            parts.title("Query"),
            dmc.Grid(
                [
                    dmc.GridCol(
                        dmc.Stack([examples, statement, buttons]), span={"base": 12, "md": 8}
                    ),
                    dmc.GridCol(_schema(source), span={"base": 12, "md": 4}),
                ]
            ),
            parts.grid_wanted(),
            html.Div(id="answer", style={"marginTop": "1rem"}),
        ]
    )


def _schema(source: Source) -> Component:
    return dmc.Accordion(
        [
            dmc.AccordionItem(
                [
                    dmc.AccordionControl(name),
                    dmc.AccordionPanel(dmc.Text(", ".join(columns), size="sm")),
                ],
                value=name,
            )
            for name, columns in _columns(source).items()
        ],
        value=TABLES[0],
    )


def _columns(source: Source) -> dict[str, tuple[str, ...]]:
    return {
        name: read_only_query(source.url, f"SELECT * FROM {name} LIMIT 0").columns  # noqa: S608  our own names
        for name in TABLES
    }


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callbacks that fill in an example, run the statement, and make files."""

    def ask(clicks: int | None, ready: bool | None, sql: str, told: dict[str, Any]) -> Any:  # noqa: FBT001  what the browser says
        asked = clicks or "sql" in Visit.of(told).query
        if not ready or not asked:
            return no_update
        return _result_table(
            read_only_query(source.url, sql, timeout_s=TIMEOUT_S, max_rows=MAX_ROWS)
        )

    def download(_: Any, __: Any, sql: str) -> Any:
        if ctx.triggered_id is None:
            return no_update
        result = read_only_query(source.url, sql, timeout_s=TIMEOUT_S, max_rows=MAX_DOWNLOAD)
        return _file(result, str(ctx.triggered_id))

    callback_in_thread(
        app,
        Output("answer", "children"),
        Input("ask", "n_clicks"),
        Input("grid-ready", "data"),
        State("sql", "value"),
        State("visit", "data"),
        prevent_initial_call=True,
    )(ask)
    callback_in_thread(
        app,
        Output("download", "data"),
        Input("as-csv", "n_clicks"),
        Input("as-json", "n_clicks"),
        State("sql", "value"),
        prevent_initial_call=True,
    )(download)
    callback_in_thread(
        app, Output("sql", "value"), Input("example", "value"), prevent_initial_call=True
    )(EXAMPLES.get)


def _file(result: QueryResult, wanted: str) -> dict[str, Any]:
    if wanted == "as-csv":
        return {"content": csv_text(result.columns, result.rows), "filename": "query.csv"}
    return {"content": json.dumps(query_view(result), indent=2), "filename": "query.json"}


def _result_table(result: QueryResult) -> Component:
    view = query_view(result)
    # Columns are renamed, as names may repeat or hold dots, which the grid reads as paths.
    fields = [f"c{i}" for i in range(len(view["columns"]))]
    rows = [dict(zip(fields, row, strict=True)) for row in view["rows"]]
    cut = f"; only the first {MAX_ROWS} are shown" if result.truncated else ""
    return dmc.Stack(
        [
            dmc.Text(f"{len(rows)} rows{cut}", size="sm", c="dimmed"),
            dag.AgGrid(
                id="result",
                columnDefs=[
                    {"field": field, "headerName": name, "sortable": True, "filter": True}
                    for field, name in zip(fields, view["columns"], strict=True)
                ],
                rowData=rows,
                dashGridOptions={
                    "theme": {"function": GRID_THEME},
                    "enableCellTextSelection": True,
                },
                columnSize="autoSize",
                style={"height": f"{min(len(rows), 14) * 2.2 + 5}rem"},
            ),
        ]
    )
