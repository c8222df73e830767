"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.agent.objectives.objective import ObjectiveName
from autotune.errors import UsageError

Model = Annotated[
    Path | None,
    typer.Argument(
        help="The workload: your model.py; or, instead, `-- COMMAND`: any command that trains.",
        show_default=False,
    ),
]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", help="Let an argument of COMMAND set a knob: batch_size=--batch-size."),
]
OutputFlag = Annotated[
    list[str] | None,
    typer.Option("--output-flag", help="An argument of COMMAND that names a folder it writes to."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or id, or `last`.")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="A file or database URL.  [default: autotune.db]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")]
GpusPerTrial = Annotated[
    int,
    typer.Option(
        "--gpus-per-trial", min=1, help="Devices of a trial; without GPUs, CPU processes."
    ),
]
PlanToMeasure = Annotated[
    Path | None, typer.Option("--plan", help="A plan file; default: the baseline.")
]
Knobs = Annotated[
    str | None, typer.Option("--knobs", help="Vary only these knobs, separated by commas.")
]
Fix = Annotated[list[str] | None, typer.Option("--fix", help="Give a knob one value: knob=value.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="Add a value that is left out by default, such as step."),
]
WidestNumerics = Annotated[
    str,
    typer.Option(
        "--numerics",
        help="Largest change of the computed numbers: exact, rounding or precision.",
    ),
]
Budget = Annotated[str, typer.Option(help="Wall-clock time, such as 90s, 15m or 1h30m.")]
ObjectiveOption = Annotated[ObjectiveName, typer.Option("--objective", help="What to optimise.")]
TrainSamples = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="For time-to-train: the samples to train on, such as 50000 or 10M."
    ),
]
MinThroughput = Annotated[
    str | None,
    typer.Option(
        metavar="X",
        help="For memory: the least throughput, in samples/s or like 90% of the baseline.",
    ),
]
TargetQuality = Annotated[
    float | None,
    typer.Option(
        "--target",
        metavar="X",
        help="For time-to-quality: what evaluate(model) is to return at least.",
    ),
]
MaxTrials = Annotated[
    int | None, typer.Option("--trials", min=1, help="Stop the search after N trials.")
]
MaxMemory = Annotated[
    str | None, typer.Option(help="Device memory that a plan may use, such as 40GiB.")
]
Seed = Annotated[int, typer.Option(help="Seed of parameters, data order and sampler.")]
DataSeed = Annotated[int, typer.Option(help="Seed of parameters and data order.")]
GpusOfPlan = Annotated[
    int | None, typer.Option(min=1, help="Devices; default: those of the plan file, else one.")
]


Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or `last`.")]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="AUTOTUNE_SERVER",
        show_envvar=True,
        help="The address of a server.",
        show_default=False,
    ),
]


def check_one_format(*, as_json: bool, as_csv: bool) -> None:
    """Refuse `--json` together with `--csv`.

    Raises:
        UsageError: when both are given.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")
