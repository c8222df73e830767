"""`autotune query SQL`: runs one SQL statement that can only read."""

from typing import Annotated

import typer

from autotune.cli.options import AsCsv, AsJson, Storage, check_one_format
from autotune.cli.output import print_csv, print_fitting, print_json
from autotune.report.as_json import query_objects
from autotune.report.words import cell
from autotune.storage.query import read_only_query

Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="Stop the query after this time.")
]
MaxRows = Annotated[int, typer.Option(metavar="N", min=1, help="Print at most this many rows.")]


def query(
    sql: Sql,
    *,
    storage: Storage = None,
    timeout: Timeout = 10.0,
    max_rows: MaxRows = 10_000,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Run an SQL statement on the store, over a connection that can only read.

    The tables are runs, trials, windows and plans; trials_wide has a column for each knob:

    autotune query "SELECT precision, max(throughput) FROM trials_wide GROUP BY 1"

    Where the columns do not fit the terminal, each row is printed as lines. `--json` gives a list
    of objects. Where there are more rows than --max-rows, a line on stderr says so.
    """
    check_one_format(as_json=as_json, as_csv=as_csv)
    result = read_only_query(storage, sql, timeout_s=timeout, max_rows=max_rows)
    if as_json:
        print_json(query_objects(result))
    elif as_csv:
        print_csv(result.columns, result.rows)
    else:
        print_fitting(result.columns, (list(map(cell, row)) for row in result.rows))
    if result.truncated:
        typer.echo(f"only the first {max_rows} rows are shown; see --max-rows", err=True)
