"""Trials of a run, filtered, sorted and cut into pages by the database."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, cast, column, literal

from autotune.errors import UsageError, nearest
from autotune.storage.query import QueryResult, read_only_query

FASTEST_FIRST = ("throughput", "throughput_low", "throughput_high")
"""Columns that are sorted with the largest value first."""
MAX_TRIALS = 1_000_000
"""Rows of a selection at most."""
TIMEOUT_S = 60.0
"""Seconds after which the database stops a selection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A test on a column of `trials_wide`.

    Attributes:
        column: its name.
        test: one of `TESTS`; `contains` looks at text, upper and lower case alike.
        value: what to compare with; unused by `is_unknown` and `is_known`.
    """

    column: str
    test: str
    value: str | float | None = None


def select_trials(
    url: str | None,
    run_id: int,
    *,
    where: str | None = None,
    conditions: Sequence[Condition] = (),
    sort: str | None = None,
    limit: int = MAX_TRIALS,
    offset: int = 0,
) -> QueryResult:
    """Return rows of `trials_wide` of one run.

    Args:
        url: as for `open_store`.
        run_id: the run.
        where: an SQL expression over the columns of `trials_wide`.
        conditions: which all must hold as well.
        sort: a column; a leading `-` turns its order round. Throughput begins with the fastest,
            everything else with the least; unknown values come last either way. None sorts by
            number.
        limit: rows at most.
        offset: rows to leave out first.

    Raises:
        UsageError: when the database refuses the expression, or there is no such column.
        StoreError: when the store cannot be opened.
    """
    columns = _columns(url)
    order = _order(sort or "number", columns)
    wanted = _wanted(run_id, where, conditions, columns)
    # Sorting whole rows would read, for each trial of the run, knobs that nobody asked for.
    sql = (
        f"SELECT * FROM trials_wide WHERE run_id = {run_id:d} AND number IN "  # noqa: S608 - runs where nothing can be written
        f"(SELECT number FROM {wanted} ORDER BY {order} LIMIT {limit:d} OFFSET {offset:d}) "
        f"ORDER BY {order}"
    )
    return read_only_query(url, sql, timeout_s=TIMEOUT_S, max_rows=MAX_TRIALS)


def chosen_columns(selected: QueryResult, names: Sequence[str]) -> QueryResult:
    """Return a selection with only these columns, in this order.

    Raises:
        UsageError: when there is no such column.
    """
    for name in names:
        _check_column(name, selected.columns, "--columns")
    places = [selected.columns.index(name) for name in names]
    rows = [tuple(row[place] for place in places) for row in selected.rows]
    return QueryResult(columns=tuple(names), rows=rows, truncated=selected.truncated)


def count_trials(
    url: str | None,
    run_id: int,
    *,
    where: str | None = None,
    conditions: Sequence[Condition] = (),
) -> int:
    """Return how many rows `select_trials` would give without a limit; see there."""
    wanted = _wanted(run_id, where, conditions, _columns(url))
    sql = f"SELECT count(*) FROM {wanted}"  # noqa: S608 - as above
    return int(read_only_query(url, sql, timeout_s=TIMEOUT_S).rows[0][0])


def _columns(url: str | None) -> tuple[str, ...]:
    return read_only_query(url, "SELECT * FROM trials_wide LIMIT 0").columns


def _wanted(
    run_id: int, where: str | None, conditions: Sequence[Condition], columns: Sequence[str]
) -> str:
    # Only a line end closes an SQL comment, and `where` may end in one.
    tests = [f"(\n{where}\n)"] if where else []
    for condition in conditions:
        _check_column(condition.column, columns, "filter")
        tests.append(_literal(condition))
    return (
        f"(SELECT * FROM trials_wide WHERE run_id = {run_id:d}) AS t "  # noqa: S608 - as above
        f"WHERE {' AND '.join(tests) or '1 = 1'}"
    )


def _same(own: ColumnElement[Any], value: Any) -> ColumnElement[bool]:
    if isinstance(value, str):
        # SQLite's booleans are numbers.
        alike = {"true": ["true", "1"], "false": ["false", "0"]}
        return cast(own, String).in_(alike.get(value, [value]))
    return own == literal(value)


TESTS: Mapping[str, Callable[[ColumnElement[Any], Any], ColumnElement[bool]]] = {
    "contains": lambda own, value: cast(own, String).icontains(str(value), autoescape=True),
    "equals": _same,
    "differs": lambda own, value: own.is_(None) | ~_same(own, value),
    "at_least": lambda own, value: own >= literal(value),
    "at_most": lambda own, value: own <= literal(value),
    "is_unknown": lambda own, _: own.is_(None),
    "is_known": lambda own, _: own.is_not(None),
}


def _literal(condition: Condition) -> str:
    if condition.test not in TESTS:
        raise UsageError(f"filter: no test {condition.test!r} (tests: {', '.join(TESTS)})")
    own: ColumnElement[Any] = column(condition.column)
    test = TESTS[condition.test](own, condition.value)
    return str(test.compile(compile_kwargs={"literal_binds": True}))


def _order(sort: str, columns: Sequence[str]) -> str:
    name = sort.removeprefix("-")
    _check_column(name, columns, "--sort")
    descending = (name in FASTEST_FIRST) != sort.startswith("-")
    quoted = '"' + name.replace('"', '""') + '"'
    return f"{quoted} IS NULL, {quoted} {'DESC' if descending else 'ASC'}, number"


def _check_column(name: str, columns: Sequence[str], asked_by: str) -> None:
    if name not in columns:
        listed = ", ".join(columns)
        raise UsageError(
            f"{asked_by}: no column {name!r}{nearest(name, columns)} (columns: {listed})"
        )
