"""`autotune show RUN [TRIAL]`: prints a run's conclusion, or all that is known of one trial."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.text import Text

from autotune.agent.objectives.stored import objective_from
from autotune.cli.conclusion import print_conclusion, print_verdict
from autotune.cli.diagnosis import print_diagnosis, print_side_by_side
from autotune.cli.options import AsJson, Run, Storage
from autotune.cli.output import (
    print_facts,
    print_json,
    print_lines,
    print_rendered,
    print_table,
)
from autotune.cli.trials import print_trials
from autotune.report.reading import read_conclusion, read_run, read_trial
from autotune.report.verdict import disqualified
from autotune.report.words import (
    cell,
    changes_text,
    duration,
    ending,
    expectation,
    kind,
    knob_value,
    left_uncompiled,
    numerics,
    other_work,
    peak_memory,
    percent,
    quality_words,
    samples,
    size,
    windows_measured,
)
from autotune.storage.records import RunRecord
from autotune.storage.sql import SqlStore, open_store
from autotune.storage.statistics import IN_FLIGHT
from autotune.trials.result import Outcome, Purpose

Trial = Annotated[
    int | None,
    typer.Argument(metavar="[TRIAL]", help="A trial's number in the run.", show_default=False),
]


def show(
    run: Run, trial: Trial = None, *, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Show the conclusion of RUN, or all that is known of one of its trials."""
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        if trial is not None:
            view = read_trial(store, record, trial)
            _show_trial(view, _why_out(store, record, trial), as_json=as_json)
        elif as_json:
            print_json(read_run(store, record))
        else:
            _show_run(store, record)


def _show_run(store: SqlStore, record: RunRecord) -> None:
    view = read_run(store, record)
    run = view["run"]
    conclusion = read_conclusion(store, record)
    if conclusion is not None:
        print_verdict(conclusion.verdict)
        print_conclusion(run, conclusion)
    if any(view["diagnoses"].values()):
        print_rendered("", Text("what limits a step", style="bold"))
        print_side_by_side(view["diagnoses"])
    _print_front(store, record, view["front"])
    print_rendered("", Text("this run", style="bold"))
    print_facts(_run_facts(run, view["outcomes"]))


def _print_front(store: SqlStore, run: RunRecord, front: Sequence[dict[str, Any]]) -> None:
    """Print the trials on the front of throughput and memory, one for each plan."""
    plans: dict[str, int] = {}
    for trial in front:
        plans.setdefault(changes_text(trial), trial["number"])
    if len(plans) < 2:  # a single one is the winner, of which all is said above
        return
    print_rendered("", Text("no other trial is faster with less memory", style="bold"))
    print_trials(run, store.trials_for(run.id, list(Purpose)), list(plans.values()))
    if run.winner is not None and not any(trial["is_winner"] for trial in front):
        print_lines(
            "The winner is not in this table: these plans were better in a single measurement, "
            "which may be noise, or may not win."
        )


def _run_facts(run: dict[str, Any], outcomes: dict[str, int]) -> Iterator[tuple[str, str]]:
    yield "run", f"{run['name']} ({run['state']})"
    if run["command"] is None:
        yield "workload", run["workload"]
    else:
        yield "command", run["command"]
    yield "machine", cell(run["hardware"].get("device_name"))
    if run["num_ranks"] > 1:
        yield "ranks", f"{run['num_ranks']} in each trial; the plan is for as many"
    yield "objective", objective_from(run["objective"]).words
    yield "started", run["created_at"][:19].replace("T", " ") + " UTC"
    yield "used", f"{duration(run['used_s'])} of {duration(run['budget_s'])}"
    counts = ", ".join(f"{count} {_outcome(outcome)}" for outcome, count in outcomes.items())
    yield "trials", f"{run['num_trials']}" + (f": {counts}" if counts else "")
    if run["winner"] is None:
        yield "stopped", cell(run["stop_reason"])


def _outcome(name: str) -> str:
    return name if name == IN_FLIGHT else ending(Outcome(name))


def _why_out(store: SqlStore, run: RunRecord, number: int) -> str | None:
    """Return why the trial's plan may not win, None where it may."""
    found = disqualified(run, store.trials_for(run.id, list(Purpose)))
    return next((out.why for out in found if number in out.trials), None)


def _show_trial(view: dict[str, Any], why_out: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_facts(_trial_facts(view))
    if why_out is not None:
        print_facts([("may not win", why_out)])
    if view["changes"]:
        rows = (
            [knob, knob_value(change["baseline"]), knob_value(change["value"])]
            for knob, change in view["changes"].items()
        )
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
    yield "trial", f"{trial['number']} ({_outcome(trial['outcome'] or IN_FLIGHT)})"
    yield "ranks", str(trial["num_ranks"])
    yield "plan", changes_text(trial)
    yield "tried as", kind(trial["purpose"])
    yield "reason", trial["reason"]
    if trial["promise"] is not None:
        yield "expected", expectation(trial["promise"])
    if trial["error"] is not None:
        yield "error", f"{trial['error']} (in {trial['phase']})"
    if trial["requested_bytes"] is not None:
        yield "asked for", size(trial["requested_bytes"])
    if trial["numerics"] is not None:
        yield "numerics", numerics(trial["numerics"])
    if trial["quality"] is not None:
        yield "training", quality_words(trial["quality"])
    yield "took", f"{duration(trial['total_s'])}, {duration(trial['overhead_s'])} of it overhead"
    yield "log", cell(trial["log_path"])


def _measured_facts(
    measured: dict[str, Any], windows: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    low, high = samples(measured["throughput_low"]), samples(measured["throughput_high"])
    yield "throughput", f"{samples(measured['throughput'])} samples/s ({low} to {high})"
    spread = percent(measured["step_ms_spread"])
    yield "step time", f"{cell(measured['step_ms'])} ms, spread {spread} %"
    yield "waiting for data", f"{percent(measured['data_wait_share'])} % of the time"
    if measured["other_work_share"]:
        yield "validation, saving", other_work(measured["other_work_share"])
    yield "peak memory", peak_memory(measured["memory_bytes"], measured["longest_batch_of"])
    if measured["recompile_limit_hits"]:
        yield "run eagerly", left_uncompiled(measured["recompile_limit_hits"])
    yield "build", duration(measured["build_s"])
    yield "first step", duration(measured["first_step_s"])
    yield "warm-up", duration(measured["warm_up_s"])
    yield "windows", windows_measured(measured, windows)
    yield "loss", f"{cell(measured['first_loss'])} to {cell(measured['last_loss'])}"
