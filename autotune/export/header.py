"""Writes the comment at the head of a file: what its plan is, its results, how to use it."""

import shlex
from collections.abc import Iterator
from pathlib import PurePath

from autotune.agent.objectives.stored import objective_from
from autotune.export.contents import PlanFile
from autotune.storage.figures import Interval


def header(file: PlanFile, file_name: str) -> list[str]:
    """Return the lines of the comment, without comment signs."""
    return [*about(file), "", *_instructions(file, file_name)]


def about(file: PlanFile) -> list[str]:
    """Return what the plan is for and what it gave, one sentence a line."""
    return [*_title(file), *_results(file)]


def _title(file: PlanFile) -> Iterator[str]:
    workload = PurePath(file.workload_path).name if file.workload_path else "a PyTorch workload"
    device = file.hardware.get("device_name")
    yield f"A training plan for {workload}" + (f" on {device}." if device else ".")


def _results(file: PlanFile) -> Iterator[str]:
    if file.objective:
        yield f"Objective: {objective_from(file.objective).words}."
    if file.verdict is not None:
        yield f"{file.verdict}."
    elif file.baseline is not None and file.plan == file.baseline:
        yield "It is the baseline: nothing better was confirmed, so keep your own configuration."
    elif file.speedup is not None:
        ratio, certainty = file.speedup.ratio, _certainty(file.speedup)
        yield f"{ratio:.2f} times the speed of the baseline{certainty}."
    if file.own.throughput is not None:
        baseline = file.baseline_figures.throughput
        against = "" if baseline is None else f"; the baseline reaches {baseline:,.1f}"
        yield f"{file.own.throughput:,.1f} samples/s{against}."
    if file.how:
        yield f"Measured by: {file.how.rstrip('.')}."
    if file.why:
        yield "Why, as factors that multiply to the whole:"
        yield from (f"    {line}" for line in file.why)
    yield from file.remarks


def _certainty(speedup: Interval) -> str:
    if speedup.low is None or speedup.high is None:
        return ", not confirmed"
    return f" (95 % interval {speedup.low:.2f} to {speedup.high:.2f})"


def _instructions(file: PlanFile, file_name: str) -> Iterator[str]:
    train = [f"    {line}" if line else "" for line in training_lines(file, file_name)]
    if file.command is not None:
        yield "Train with it, the script as it is:"
        yield from train
        yield f"Measure it again: autotune measure --plan {file_name} -- {_typed(file)}"
        return
    several = file.ranks is not None and file.ranks > 1
    yield "Train with it, in a script train.py:" if several else "Train with it:"
    yield ""
    yield from train
    yield ""
    if several:
        yield f"It is for {file.ranks} ranks; start it with:"
        yield f"    {start_line(file)}"
    yield f"Measure it again: autotune measure {_workload(file)} --plan {file_name}"


def training_lines(file: PlanFile, file_name: str) -> list[str]:
    """Return the command, or the lines of Python, that train with a plan file."""
    if file.command is not None:
        return [f"autotune exec --plan {file_name} -- {_typed(file)}"]
    return [
        "import autotune",
        "",
        f'plan = autotune.load_plan("{file_name}")',
        f'with autotune.apply(plan, workload="{_workload(file)}") as step:',
        "    for batch in step.loader:",
        "        loss = step(batch)",
    ]


def start_line(file: PlanFile) -> str | None:
    """Return the command that starts a script of these lines; None where it is just run."""
    if file.command is not None or file.ranks is None or file.ranks < 2:
        return None
    return f"torchrun --nproc-per-node {file.ranks} train.py"


def _typed(file: PlanFile) -> str:
    """Return the command as it runs under the plan, which sets some of its arguments."""
    return shlex.join(file.command.under(file.plan)) if file.command else ""


def _workload(file: PlanFile) -> str:
    return file.workload_path or "model.py"
