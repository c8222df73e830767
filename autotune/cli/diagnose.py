"""`autotune diagnose MODEL [--plan plan.yaml] [--trace FILE]`: finds what limits a step."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.diagnosis import print_diagnosis
from autotune.cli.invocation import invocation_of
from autotune.cli.measure import speed_facts
from autotune.cli.options import AsJson, DataSeed, Fix, Model, PlanToMeasure
from autotune.cli.output import print_facts, print_json
from autotune.cli.parsing import parse_fixed
from autotune.dispatch.others import others_load
from autotune.errors import UsageError
from autotune.export.plan_file import load_plan_file
from autotune.report.doubt import in_doubt, why_in_doubt
from autotune.search_space.plan import Value
from autotune.trials.diagnosis import DiagnosisRequest


def diagnose(
    context: typer.Context,
    model: Model = None,
    *,
    plan: PlanToMeasure = None,
    fix: Fix = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of some steps for Perfetto to this file.")
    ] = None,
    seed: DataSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Find what limits a training step of MODEL, with the evidence and what to do about it.

    On a machine that other programs use, it says that it cannot tell.
    """
    from autotune.agent.bench import Bench  # noqa: PLC0415  `--help` needs no ray

    invocation = invocation_of(context)
    if model is None:
        raise UsageError(
            "`autotune diagnose` needs a model.py with functions; a command is measured with "
            "`autotune measure -- COMMAND`, and `autotune run -- COMMAND` says what it waits for"
        )
    target = invocation.target(model)
    values = _values(plan) | dict(parse_fixed(fix))
    request = DiagnosisRequest(trace_path=_trace_path(trace), explain_graphs=True)
    before = others_load()
    with Bench(target, seed=seed) as bench:
        subject = bench.subject(target, values)
        result = bench.measure(subject, request)
    assert result.measurement is not None
    assert result.diagnosis is not None
    why = why_in_doubt(result.measurement, [before, others_load()])
    believed = in_doubt(result.diagnosis, why) if why else result.diagnosis
    diagnosis = believed.to_dict()
    if as_json:
        document = {"plan": subject.plan.values, "measurement": asdict(result.measurement)}
        print_json({**document, "diagnosis": diagnosis})
        return
    measured = result.measurement
    print_facts(
        [
            *speed_facts(subject.plan, subject.baseline, measured),
            ("step time", f"{measured.step_ms:.3f} ms"),
        ]
    )
    print_diagnosis(diagnosis)


def _values(plan: Path | None) -> dict[str, Value]:
    if plan is None:
        return {}
    file = load_plan_file(plan)
    if (file.ranks or 1) > 1:
        raise UsageError(
            f"{plan} is for {file.ranks} ranks, and `autotune diagnose` uses one device; use "
            f"`autotune run --gpus-per-trial {file.ranks}`, which diagnoses baseline and winner"
        )
    return dict(file.plan.values)


def _trace_path(trace: Path | None) -> str | None:
    if trace is None:
        return None
    if trace.suffix != ".json":
        raise UsageError(f"--trace {trace}: the file's name must end in .json")
    folder = trace.absolute().parent
    if trace.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--trace {trace}: no file can be written there; name another")
    return str(trace.absolute())
