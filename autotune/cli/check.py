"""`autotune check MODEL --against main`: fails where a training became slower than it may."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.agent.request import parse_budget
from autotune.cli.asked_plan import asked_plan
from autotune.cli.invocation import invocation_of
from autotune.cli.options import (
    AsJson,
    Bind,
    Budget,
    DataSeed,
    Fix,
    GpusOfPlan,
    Model,
    OutputFlag,
    PlanToMeasure,
    Storage,
)
from autotune.cli.output import print_json, print_lines, print_table
from autotune.cli.parsing import parse_share
from autotune.errors import RegressionError, UsageError
from autotune.export.formats import SUFFIXES
from autotune.export.plan_file import load_plan_file
from autotune.report.words import samples, size
from autotune.search_space.plan import Value
from autotune.trials.result import Measurement

if TYPE_CHECKING:
    from autotune.agent.check.limits import Limit
    from autotune.agent.check.sides import Checked, Level


def check(
    context: typer.Context,
    model: Model = None,
    *,
    bind: Bind = None,
    output_flag: OutputFlag = None,
    plan: PlanToMeasure = None,
    fix: Fix = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="A revision of the repository, another plan file, or `stored`: what this machine "
            "measured before.",
        ),
    ] = "stored",
    max_drop: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest loss of throughput.")
    ] = "5%",
    max_memory_rise: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Largest rise of the peak memory.")
    ] = None,
    max_first_step_rise: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Largest rise of the first step, with compiling."),
    ] = None,
    budget: Budget = "10m",
    gpus_per_trial: GpusOfPlan = None,
    seed: DataSeed = 0,
    storage: Storage = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result as JUnit's XML.")
    ] = None,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github",
            help="Print GitHub's annotations.  [default: in GitHub's workflows]",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fail, with exit code 6, where a training became slower or larger than it may.

    Both sides are measured in turn, in fresh processes, until the answer is known or time is up.
    """
    # These import torch's neighbours, and `--help` needs none.
    from autotune.agent.check.checking import CheckRequest, is_failed  # noqa: PLC0415
    from autotune.agent.check.checking import check as run_check  # noqa: PLC0415

    invocation = invocation_of(context)
    asked = asked_plan(plan, fix, gpus_per_trial)
    request = CheckRequest(
        target=invocation.target(model, bind, output_flag),
        values=asked.values,
        against=against,
        other_values=_other_plan(against),
        limits=_limits(max_drop, max_memory_rise, max_first_step_rise),
        budget_s=parse_budget(budget),
        started_at=invocation.started_at,
        num_ranks=asked.num_ranks,
        seed=seed,
        storage=storage,
    )
    checked = run_check(request, _print_round)
    _print(checked, as_json=as_json)
    _report(checked, junit, is_github=_is_github() if github is None else github)
    if is_failed(checked):
        raise RegressionError("the training became worse than its limits allow")


def _other_plan(against: str) -> dict[str, Value] | None:
    """Return the knobs of the plan file that `--against` names, None where it names none."""
    path = Path(against)
    if path.suffix not in SUFFIXES:
        return None
    if not path.is_file():
        raise UsageError(f"--against {against}: there is no such plan file")
    return dict(load_plan_file(path).plan.values)


def _limits(drop: str, memory_rise: str | None, first_step_rise: str | None) -> "list[Limit]":
    from autotune.agent.check.limits import Limit, Metric  # noqa: PLC0415  see `check`

    asked = {
        Metric.THROUGHPUT: ("--max-drop", drop),
        Metric.MEMORY: ("--max-memory-rise", memory_rise),
        Metric.FIRST_STEP: ("--max-first-step-rise", first_step_rise),
    }
    return [
        Limit(metric=metric, share=parse_share(option, text))
        for metric, (option, text) in asked.items()
        if text is not None
    ]


def _print_round(name: str, measured: Measurement) -> None:
    sys.stderr.write(f"{name}: {samples(measured.throughput)} samples/s\n")
    sys.stderr.flush()


def _print(checked: "Checked", *, as_json: bool) -> None:
    from autotune.report.check import basis, check_view, sentence, verdict  # noqa: PLC0415

    if as_json:
        print_json(check_view(checked))
        return
    levels = [level for level in (checked.now, checked.reference) if level is not None]
    print_table(
        ("", "commit", "samples/s #", "memory #", "first step #", "processes #"),
        [_row(level) for level in levels],
    )
    print_lines(*(sentence(found, checked) for found in checked.findings))
    print_lines(f"{verdict(checked)} ({basis(checked)})")


def _row(level: "Level") -> tuple[str, ...]:
    first = "" if level.first_step_s is None else f"{level.first_step_s:.1f} s"
    return (
        level.name,
        level.commit.shown if level.commit else "",
        samples(level.throughput),
        size(level.memory_bytes),
        first,
        str(level.num_processes),
    )


def _report(checked: "Checked", junit: Path | None, *, is_github: bool) -> None:
    from autotune.report.check import annotations, junit_xml  # noqa: PLC0415

    if junit is not None:
        junit.write_text(junit_xml(checked, checked.now.name))
    if is_github:
        print_lines(*annotations(checked))


def _is_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
