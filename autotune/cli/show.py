"""`autotune show RUN [TRIAL]`: a run's conclusion, or everything about one trial."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from autotune.agent.objectives.stored import objective_from
from autotune.cli.diagnosed import print_diagnosis, print_side_by_side
from autotune.cli.output import AsJson, Storage, print_facts, print_json, print_lines, print_table
from autotune.cli.trials import Run, print_trials
from autotune.report.reading import read_run, read_trial
from autotune.report.words import (
    cell,
    changes_text,
    duration,
    gib,
    numerics,
    percent,
    samples,
    verdict,
    windows_measured,
)
from autotune.storage.sql import open_store
from autotune.storage.statistics import IN_FLIGHT

Trial = Annotated[
    int | None,
    typer.Argument(metavar="[TRIAL]", help="A trial's number in the run.", show_default=False),
]


def show(
    run: Run, trial: Trial = None, *, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Show what a run concluded, or one trial in full."""
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        if trial is None:
            _show_run(read_run(store, record), as_json=as_json)
        else:
            _show_trial(read_trial(store, record, trial), as_json=as_json)


def _show_run(view: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    run = view["run"]
    print_facts(_run_facts(run, view["outcomes"]))
    if run["winner"] is not None:
        print_winner(run["winner"])
    print_side_by_side(view["diagnoses"])
    if view["front"]:
        _print_front(view["front"], run["winner"])


def _print_front(front: Sequence[dict[str, Any]], winner: dict[str, Any] | None) -> None:
    """Print the trials that none beats, each plan once, and which of them the winner is."""
    plans: dict[str, dict[str, Any]] = {}
    for trial in front:
        plans.setdefault(changes_text(trial), trial)
    print_trials(list(plans.values()), "Fastest for the memory they need")
    if winner is not None and not any(trial["is_winner"] for trial in front):
        print_lines(
            "The winner is not among them: each of these did better in one trial, which luck may "
            "have helped, or may not win."
        )


def _run_facts(run: dict[str, Any], outcomes: dict[str, int]) -> Iterator[tuple[str, str]]:
    yield "run", f"{run['name']} ({run['state']})"
    yield "workload", run["workload"]
    yield "machine", cell(run["hardware"].get("device_name"))
    if run["num_ranks"] > 1:
        yield "ranks", f"{run['num_ranks']} in a trial; the plan is for as many"
    yield "objective", objective_from(run["objective"]).words
    yield "started", run["created_at"][:19].replace("T", " ") + " UTC"
    yield "used", f"{duration(run['used_s'])} of {duration(run['budget_s'])}"
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    yield "trials", f"{run['num_trials']}" + (f": {counts}" if counts else "")
    yield "stopped", cell(run["stop_reason"])


def print_winner(winner: dict[str, Any]) -> None:
    """Print a conclusion: baseline and winner side by side, the speed-up, what changed and why."""
    columns = ["", "throughput (samples/s)", "memory (GiB)"]
    rows = [
        ["baseline", samples(winner["baseline_throughput"]), gib(winner["baseline_memory_bytes"])],
        ["winner", samples(winner["throughput"]), gib(winner["memory_bytes"])],
    ]
    if winner["train_s"] is not None:
        columns += ["start-up", "to train"]
        rows[0] += [duration(winner["baseline_start_s"]), duration(winner["baseline_train_s"])]
        rows[1] += [duration(winner["start_s"]), duration(winner["train_s"])]
    print_table(columns, rows)
    print_lines(verdict(winner), *winner["remarks"])
    if winner["changes"]:
        print_table(("knob", "baseline", "winner", "why"), _changes(winner["changes"]))


def _changes(changes: dict[str, Any]) -> Iterator[list[str]]:
    for knob, change in changes.items():
        yield [knob, cell(change["baseline"]), cell(change["value"]), cell(change.get("why"))]


def _show_trial(view: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_facts(_trial_facts(view))
    if view["changes"]:
        rows = [row[:3] for row in _changes(view["changes"])]
        print_table(("knob", "baseline", "this trial"), rows)
    if view["measurement"] is not None:
        print_facts(_measured_facts(view["measurement"], view["windows"]))
    if view["diagnosis"] is not None:
        print_diagnosis(view["diagnosis"])
    for title, text in (("Traceback", view["traceback"]), ("End of the log", view["log_tail"])):
        if text:
            print_lines("", f"{title}:", text.rstrip("\n"))
    print_lines("", "Measure it again:", *(f"  {command}" for command in view["measure_again"]))


def _trial_facts(trial: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "trial", f"{trial['number']} ({trial['outcome'] or IN_FLIGHT})"
    yield "ranks", str(trial["num_ranks"])
    yield "plan", changes_text(trial)
    yield "purpose", trial["purpose"]
    yield "reason", trial["reason"]
    if trial["error"] is not None:
        yield "error", f"{trial['error']} (in {trial['phase']})"
    if trial["requested_bytes"] is not None:
        yield "asked for", f"{gib(trial['requested_bytes'])} GiB"
    if trial["numerics"] is not None:
        yield "numerics", numerics(trial["numerics"])
    yield "took", f"{duration(trial['total_s'])}, {duration(trial['overhead_s'])} of it overhead"
    yield "log", cell(trial["log_path"])


def _measured_facts(
    measured: dict[str, Any], windows: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    low, high = samples(measured["throughput_low"]), samples(measured["throughput_high"])
    yield "throughput", f"{samples(measured['throughput'])} samples/s ({low} to {high})"
    spread = percent(measured["step_ms_spread"])
    yield "step", f"{cell(measured['step_ms'])} ms, spread {spread} %"
    yield "waiting for data", f"{percent(measured['data_wait_share'])} %"
    yield "memory", f"{gib(measured['memory_bytes'])} GiB"
    yield "build", duration(measured["build_s"])
    yield "first step", duration(measured["first_step_s"])
    yield "warm-up", duration(measured["warm_up_s"])
    yield "windows", windows_measured(measured, windows)
    yield "loss", f"{cell(measured['first_loss'])} to {cell(measured['last_loss'])}"
