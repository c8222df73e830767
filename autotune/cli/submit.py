"""`autotune submit MODEL`: lets a server find the best plan."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.agent.objectives.objective import ObjectiveName
from autotune.agent.request import parse_budget
from autotune.cli.invocation import invocation_of
from autotune.cli.options import (
    Allow,
    AsJson,
    Bind,
    Budget,
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
    Server,
    TargetQuality,
    TrainSamples,
    WidestNumerics,
)
from autotune.cli.output import print_json, print_lines
from autotune.cli.parsing import parse_narrowing, parse_objective, parse_size
from autotune.cli.watch import show_job
from autotune.errors import UsageError
from autotune.service.client import Client


def submit(
    context: typer.Context,
    model: Model = None,
    *,
    server: Server = None,
    bind: Bind = None,
    output_flag: OutputFlag = None,
    budget: Budget = "15m",
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
    seed: Seed = 0,
    name: Annotated[str | None, typer.Option(help="A name for the job.")] = None,
    priority: Annotated[
        int, typer.Option(min=-10, max=10, help="Jobs of a larger one start first.")
    ] = 0,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Devices that the job holds; default: those of a trial. With more, trials run "
            "side by side.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder to send, in which the job runs; default: this one."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Files that are not sent, such as *.ckpt.")
    ] = None,
    on_server: Annotated[
        bool, typer.Option("--on-server", help="Paths are the server's; nothing is sent.")
    ] = False,
    python: Annotated[
        str | None, typer.Option(help="The path of an interpreter on the server.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run until it has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a server find the fastest plan; it starts when devices are free.

    Tunes the functions of MODEL, or a training script as it is:
    `autotune submit --budget 2h -- python train.py --epochs 3`.
    """
    invocation = invocation_of(context)
    behind = invocation.behind or ()
    if model is None and not behind:
        raise UsageError(
            "nothing to submit: give your model.py, or `-- COMMAND`, such as `-- python train.py`"
        )
    invocation.target(model, bind, output_flag)  # an error here needs no server
    parse_budget(budget)
    parse_objective(objective, train_samples, min_throughput, target)
    parse_narrowing(knobs, fix, allow, numerics)
    parse_size(max_memory)
    client = Client(server)
    job = client.submit(
        model,
        command=() if model is not None else behind,
        arguments=behind if model is not None else (),
        folder=folder,
        on_server=on_server,
        exclude=exclude or (),
        budget=budget,
        name=name,
        priority=priority,
        devices=devices,
        python=python,
        objective=objective.value,
        train_samples=train_samples,
        min_throughput=min_throughput,
        target=target,
        trials=trials,
        gpus_per_trial=gpus_per_trial,
        knobs=knobs,
        fix=fix,
        allow=allow,
        numerics=numerics,
        max_memory=max_memory,
        seed=seed,
        bind=bind,
        output_flag=output_flag,
    )
    if as_json:
        print_json(job)
    else:
        print_lines(f"job {job['id']} is {job['state']}; `autotune watch {job['id']}` shows it")
    if watch:
        show_job(client, job["id"])
