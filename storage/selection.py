"""The trials of a run that a user asked for, in the order they asked for."""

from autotune.errors import UsageError, nearest
from autotune.storage.query import QueryResult, read_only_query

FASTEST_FIRST = ("throughput", "throughput_low", "throughput_high")
MAX_TRIALS = 1_000_000
TIMEOUT_S = 60.0


def select_trials(
    url: str | None, run_id: int, *, where: str | None = None, sort: str | None = None
) -> QueryResult:
    """Return rows of `trials_wide` of one run.

    Args:
        url: as for `open_store`.
        run_id: the run.
        where: an SQL expression over the columns of `trials_wide`.
        sort: a column; a leading `-` turns its order round. Throughput begins with the fastest,
            everything else with the least; unknown values come last either way. None sorts by
            number.

    Raises:
        UsageError: when the database refuses the expression, or there is no such column.
        StoreError: when the store cannot be opened.
    """
    order = _order(url, sort or "number")
    # Only a line end closes an SQL comment, and `where` may end in one.
    sql = (
        f"SELECT * FROM (SELECT * FROM trials_wide WHERE run_id = {run_id}) AS t "  # noqa: S608 - runs where nothing can be written
        f"WHERE (\n{where or '1 = 1'}\n) ORDER BY {order}"
    )
    return read_only_query(url, sql, timeout_s=TIMEOUT_S, max_rows=MAX_TRIALS)


def _order(url: str | None, sort: str) -> str:
    column = sort.removeprefix("-")
    known = read_only_query(url, "SELECT * FROM trials_wide LIMIT 0").columns
    if column not in known:
        listed = ", ".join(known)
        raise UsageError(
            f"--sort: no column {column!r}{nearest(column, known)} (columns: {listed})"
        )
    descending = (column in FASTEST_FIRST) != sort.startswith("-")
    quoted = '"' + column.replace('"', '""') + '"'
    return f"{quoted} IS NULL, {quoted} {'DESC' if descending else 'ASC'}, number"
