"""`autotune run MODEL`: finds the best plan, confirms it, and writes it to a file."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from autotune.agent.objectives.objective import ObjectiveName
from autotune.agent.objectives.stored import objective_from
from autotune.agent.request import EndedRun, TuneRequest, check_evaluates, parse_budget
from autotune.agent.settings import SearchSettings
from autotune.cli.conclusion import print_conclusion, print_verdict
from autotune.cli.invocation import invocation_of
from autotune.cli.live import RunScreen
from autotune.cli.options import (
    Allow,
    AsJson,
    Bind,
    Fix,
    GpusPerTrial,
    Knobs,
    MaxMemory,
    MaxTrials,
    MinThroughput,
    Model,
    ObjectiveOption,
    OutputFlag,
    Seed,
    Storage,
    TargetQuality,
    TrainSamples,
    WidestNumerics,
)
from autotune.cli.options import (
    Budget as BudgetOption,
)
from autotune.cli.output import print_json, print_lines
from autotune.cli.parsing import parse_narrowing, parse_objective, parse_size
from autotune.cli.space import knob_rows, space_document
from autotune.cli.stopping import NOTHING_MEASURED, Stop, stop_on_signals
from autotune.clock import Budget, in_words
from autotune.dispatch.others import Watch
from autotune.errors import InterruptedRunError, PlanError
from autotune.export.header import training_lines
from autotune.export.plan_file import check_writable, plan_file_of, write_plan_file
from autotune.report.as_json import conclusion_view, run_view
from autotune.report.doubt import busy_words
from autotune.report.reading import conclusion_of
from autotune.report.words import commands_after, kind
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.space import Space
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import open_store
from autotune.trials.result import Purpose


def run(
    context: typer.Context,
    model: Model = None,
    *,
    bind: Bind = None,
    output_flag: OutputFlag = None,
    budget: BudgetOption = "15m",
    objective: ObjectiveOption = ObjectiveName.THROUGHPUT,
    train_samples: TrainSamples = None,
    min_throughput: MinThroughput = None,
    target: TargetQuality = None,
    trials: MaxTrials = None,
    gpus_per_trial: GpusPerTrial = 1,
    knobs: Knobs = None,
    fix: Fix = None,
    allow: Allow = None,
    numerics: WidestNumerics = "precision",
    max_memory: MaxMemory = None,
    storage: Storage = None,
    name: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start a new run even if an unfinished one could go on."),
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster; default: a private one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The plan file to write.")] = Path("plan.yaml"),
    seed: Seed = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the space and the first trials; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest way to train on this machine, or the best by another objective.

    Tunes the functions of MODEL, or a training script as it is:
    `autotune run --budget 15m -- python train.py --epochs 3`.
    """
    invocation = invocation_of(context)
    request = TuneRequest(
        target=invocation.target(model, bind, output_flag),
        budget_s=parse_budget(budget),
        objective=parse_objective(objective, train_samples, min_throughput, target),
        num_ranks=gpus_per_trial,
        started_at=invocation.started_at,
        max_trials=trials,
        narrowing=parse_narrowing(knobs, fix, allow, numerics),
        max_memory_bytes=parse_size(max_memory),
        storage=storage,
        name=name,
        fresh=fresh,
        ray_address=ray_address,
        seed=seed,
    )
    if dry_run:
        _preview(request, as_json=as_json)
        return
    check_writable(out)
    console = Console(stderr=True, highlight=False)
    # The same signal may come again while the plan file is written.
    with stop_on_signals(lambda line: console.print(line, style="yellow")) as stop:
        ended = _tune(request, console, stop)
        _print_conclusion(ended, out, storage, as_json=as_json)


def _tune(request: TuneRequest, console: Console, stop: Stop) -> EndedRun:
    with RunScreen(console) as screen:
        watch = Watch()
        from autotune.agent.session import tune  # noqa: PLC0415  `--help` needs no ray, no optuna

        disturbances = tuple(
            f"{busy} as the run began: figures are lower and vary more than on a quiet machine"
            for busy in busy_words([watch.load()])
        )

        def make_observer(run: RunRecord, space: Space, budget: Budget) -> RunScreen:
            print_introduction(console, run, space.facts, disturbances)
            earlier = _trials(request.storage, run) if run.num_trials else []
            screen.begin(run, budget, earlier)
            stop.begin()
            return screen

        try:
            return tune(replace(request, disturbances=disturbances), make_observer, stop.is_set)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                "stopped at once; finished trials are stored, and the same command goes on"
            ) from None


def _trials(storage: str | None, run: RunRecord) -> list[TrialRecord]:
    """Return the trials of a run that are in the store, which other connections write to."""
    with closing(open_store(storage, read_only=True)) as store:
        return store.trials_for(run.id, list(Purpose))


def print_introduction(
    console: Console, run: RunRecord, facts: WorkloadFacts, disturbances: Iterable[str] = ()
) -> None:
    """Print what is trained on which machine, what the run looks for, and what to know first.

    To know is also what else used the machine as the run began.
    """
    ranks = run.new.num_ranks
    wraps_not = not console.is_terminal
    console.print(
        f"{run.name}: {Path(run.new.workload_path).name}, {facts.num_parameters:,} parameters, "
        f"on {run.new.hardware['num_devices']} x {run.new.hardware['device_name']}"
        + (f", {ranks} in each trial" if ranks > 1 else ""),
        soft_wrap=wraps_not,
    )
    words = objective_from(run.new.objective).words
    console.print(
        f"looking for {words}, for {in_words(run.new.budget_s)}{_kept_for_quality(run)}",
        soft_wrap=wraps_not,
    )
    if run.used_s > 0:
        console.print(
            f"going on with an unfinished run: it has {run.num_trials} trials and has used "
            f"{run.used_s:.0f} s of its budget; --fresh starts a new one",
            soft_wrap=wraps_not,
        )
    for remark in (*facts.remarks, *disturbances):
        console.print(Text(f"note: {remark}", style="yellow"), soft_wrap=wraps_not)
    console.print("")


def _kept_for_quality(run: RunRecord) -> str:
    """Return which part of the budget is kept for trainings to a target, in words."""
    objective = objective_from(run.new.objective)
    kept_s = SearchSettings(budget_s=run.new.budget_s, objective=objective).quality_s
    return f"; {in_words(kept_s)} of it to train the fastest plans to that" if kept_s else ""


def _print_conclusion(ended: EndedRun, out: Path, storage: str | None, *, as_json: bool) -> None:
    record, trials, failure = ended.record, ended.trials, ended.failure
    if record.winner is None:
        raise failure or InterruptedRunError(NOTHING_MEASURED)
    written = _write_plan(ended, out)
    if as_json:
        said = conclusion_view(conclusion_of(record, trials))
        print_json({**run_view(record), **said, "plan_file": str(out)})
    else:
        print_end(record, trials, out, storage)
    if failure is not None:
        raise type(failure)(f"{failure}; {written}")
    if record.state is RunState.INTERRUPTED:
        raise InterruptedRunError(
            f"interrupted: {written}; the same command goes on with this run"
        )


def _write_plan(ended: EndedRun, out: Path) -> str:
    """Write the plan file, and return what is in it, in words.

    Raises:
        PlanError: when it cannot be written. Of a run that failed, the return value says so.
    """
    try:
        write_plan_file(plan_file_of(ended.record, ended.trials), out)
    except PlanError as error:
        if ended.failure is None:
            raise
        return f"the plan is printed above and nowhere else ({error})"
    if ended.record.state is RunState.INTERRUPTED:
        return f"{out} holds the best plan so far, not confirmed"
    return f"{out} holds the plan"


def print_end(
    record: RunRecord, trials: list[TrialRecord], out: Path, storage: str | None
) -> None:
    """Print the verdict and what it rests on, the plan file and the next two commands."""
    conclusion = conclusion_of(record, trials)
    assert conclusion is not None
    print_verdict(conclusion.verdict)
    print_conclusion(run_view(record), conclusion)
    print_lines("", f"plan written: {out}")
    if record.new.facts.get("command") is None and not conclusion.verdict.kept_baseline:
        lines = training_lines(plan_file_of(record, trials), str(out))
        print_lines("train with it:", *(f"  {line}" for line in lines))
    commands = commands_after(record, str(out), storage)
    print_lines("next:", *(f"  {command}" for command in commands))


def _preview(request: TuneRequest, *, as_json: bool) -> None:
    from autotune.agent.preview import first_trials  # noqa: PLC0415  see _tune
    from autotune.agent.session import look_at  # noqa: PLC0415  the same

    hardware, spaces = look_at(
        request.target, request.narrowing, num_ranks=request.num_ranks, seed=request.seed
    )
    space = spaces.whole
    check_evaluates(request, space.facts)
    objective = request.objective
    planned = first_trials(space, hardware, request.budget_s, spaces.scouting, objective)
    if as_json:
        document: dict[str, Any] = {
            **space_document(space),
            "objective": objective.to_dict(),
            "first_trials": planned,
        }
        print_json(document)
        return
    for knob, values, reason in knob_rows(space):
        print_lines(f"  {knob:<24} {values}" + (f"   ({reason})" if reason else ""))
    print_lines("", f"a run would look for {objective.words}, and start with:")
    for trial in planned:
        devices = f"on {trial['num_ranks']:<3} " if spaces.scouting else ""
        print_lines(
            f"  {kind(trial['purpose']):<12} {devices}{trial['change']}: {trial['reason']}"
        )
    print_lines(f"nothing was run; the budget of a run would be {request.budget_s:.0f} s")
