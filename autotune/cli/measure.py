"""`autotune measure MODEL [--plan plan.yaml]`: measures one plan as a trial does."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.asked_plan import asked_plan
from autotune.cli.invocation import invocation_of
from autotune.cli.options import (
    AsJson,
    Bind,
    DataSeed,
    Fix,
    GpusOfPlan,
    Model,
    OutputFlag,
    PlanToMeasure,
)
from autotune.cli.output import print_facts, print_json
from autotune.export.mlperf_log import MeasuredPlan, MlperfLog
from autotune.report.words import other_work, peak_memory, percent
from autotune.search_space.changes import describe_changes
from autotune.search_space.plan import Plan
from autotune.trials.result import Measurement


def measure(
    context: typer.Context,
    model: Model = None,
    *,
    bind: Bind = None,
    output_flag: OutputFlag = None,
    plan: PlanToMeasure = None,
    fix: Fix = None,
    gpus_per_trial: GpusOfPlan = None,
    seed: DataSeed = 0,
    mlperf_log: Annotated[
        Path | None, typer.Option(help="Also write a log of MLPerf's format to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput of one plan in fresh processes, with its 95 % interval."""
    from autotune.agent.bench import Bench  # noqa: PLC0415  `--help` needs no ray

    invocation = invocation_of(context)
    log = MlperfLog(mlperf_log) if mlperf_log else None
    asked = asked_plan(plan, fix, gpus_per_trial)
    target = invocation.target(model, bind, output_flag)
    with Bench(target, num_ranks=asked.num_ranks, seed=seed) as bench:
        subject = bench.subject(target, asked.values)
        measured = bench.measure(subject).measurement
    assert measured is not None
    if log is not None:
        log.write(
            MeasuredPlan(
                name=target.path.stem,
                device=bench.hardware.device_name,
                plan=subject.plan,
                num_ranks=asked.num_ranks,
                seed=seed,
                measurement=measured,
            )
        )
    if as_json:
        document = {"plan": subject.plan.values, "num_ranks": asked.num_ranks}
        print_json({**document, "measurement": asdict(measured)})
        return
    if asked.num_ranks > 1:
        print_facts([("ranks", str(asked.num_ranks))])
    print_facts(_facts(subject.plan, subject.baseline, measured))


def speed_facts(plan: Plan, baseline: Plan, measured: Measurement) -> list[tuple[str, str]]:
    """Return (name, value) pairs: the plan, its throughput, and the 95 % interval."""
    low, high = measured.throughput_low, measured.throughput_high
    return [
        ("plan", describe_changes(plan, baseline)),
        ("throughput", f"{measured.throughput:,.1f} samples/s"),
        ("95 % interval", f"{low:,.1f} to {high:,.1f} samples/s"),
    ]


def _facts(plan: Plan, baseline: Plan, measured: Measurement) -> list[tuple[str, str]]:
    steps = sum(window.steps for window in measured.windows)
    return [
        *speed_facts(plan, baseline, measured),
        ("step time", f"{measured.step_ms:.3f} ms, spread {percent(measured.step_ms_spread)} %"),
        ("waiting for data", f"{percent(measured.data_wait_share)} % of the time"),
        *_beside_training(measured),
        ("peak memory", peak_memory(measured.memory_bytes, measured.longest_batch_of)),
        ("first step", f"{measured.first_step_s:.1f} s, compilation included"),
        (
            "measured over",
            f"{steps} steps in {len(measured.windows)} windows, {measured.measure_s:.1f} s"
            + ("" if measured.settled else "; the interval did not reach 1 % in that time"),
        ),
    ]


def _beside_training(measured: Measurement) -> list[tuple[str, str]]:
    share = measured.other_work_share
    return [("validation, saving", other_work(share))] if share else []
