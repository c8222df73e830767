"""`autotune runs`: lists the runs of a store."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from autotune.cli.options import AsCsv, AsJson, Storage, check_one_format
from autotune.cli.output import print_csv, print_fitting, print_json, print_lines
from autotune.report.as_json import run_view
from autotune.report.words import UNKNOWN, duration, samples, speedup
from autotune.storage.sql import open_store

# Columns of `--csv`, by their keys in a `run_view` and in its winner.
RUN_COLUMNS = ("id", "name", "state", "workload", "num_trials", "used_s", "budget_s")
WINNER_COLUMNS = ("baseline_throughput", "throughput", "speedup", "speedup_low", "speedup_high")
END_COLUMNS = ("created_at", "finished_at", "stop_reason")


def runs(*, storage: Storage = None, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the runs of a store, newest first."""
    check_one_format(as_json=as_json, as_csv=as_csv)
    with closing(open_store(storage, read_only=True)) as store:
        views = [run_view(run) for run in store.runs()]
    if as_json:
        print_json(views)
    elif as_csv:
        print_csv((*RUN_COLUMNS, *WINNER_COLUMNS, *END_COLUMNS), map(_csv_row, views))
    elif views:
        _print(views)
    else:
        print_lines("The store has no run yet; `autotune run MODEL` makes one.")


def _csv_row(run: dict[str, Any]) -> list[Any]:
    winner = run["winner"] or {}
    values = [run[name] for name in RUN_COLUMNS]
    values += [winner.get(name) for name in WINNER_COLUMNS]
    return values + [run[name] for name in END_COLUMNS]


def _print(views: Iterable[dict[str, Any]]) -> None:
    columns = (
        "id",
        "name",
        "state",
        "workload",
        "trials",
        "baseline (samples/s)",
        "winner (samples/s)",
        "speed-up (95 % interval)",
        "used",
        "started (UTC)",
    )
    # Left out one after the other where the terminal is too narrow.
    expendable = (
        "started (UTC)",
        "used",
        "baseline (samples/s)",
        "workload",
        "winner (samples/s)",
        "trials",
        "state",
    )
    print_fitting(columns, map(_row, views), expendable)


def _row(run: dict[str, Any]) -> list[str]:
    winner = run["winner"]
    return [
        str(run["id"]),
        run["name"],
        run["state"],
        Path(run["workload"]).name,
        str(run["num_trials"]),
        samples(winner and winner["baseline_throughput"]),
        samples(winner and winner["throughput"]),
        _speedup(winner) if winner else UNKNOWN,
        duration(run["used_s"]),
        run["created_at"][:16].replace("T", " "),
    ]


def _speedup(winner: dict[str, Any]) -> str:
    """Return a winner's speed-up, or that there is none, or that it was not confirmed."""
    if winner["kept_baseline"]:
        return "keep the baseline"
    if winner["confirmed"]:
        return speedup(winner)
    own, theirs = winner["throughput"], winner["baseline_throughput"]
    return f"{own / theirs:.2f}x (not confirmed)" if own and theirs else UNKNOWN
