"""Writes the kernels of a plan beside its file, so that a training with it need not compile."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.dispatch.machine import detect_hardware
from autotune.errors import PlanError, UsageError
from autotune.export.contents import PlanFile
from autotune.export.files import check_place, kernels_path
from autotune.search_space.knobs import is_compiled
from autotune.search_space.target import Target
from autotune.storage.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenKernels:
    """A file of kernels that was written.

    Attributes:
        path: where it is.
        num_bytes: its size.
        first_step_s: the first step of the trial that made them, with an empty cache.
        took_s: the whole trial, with the start of its processes.
    """

    path: Path
    num_bytes: int
    first_step_s: float
    took_s: float


def check_kernels_can_be_made(run: RunRecord, file: PlanFile, plan_path: Path) -> None:
    """Raise an error where `write_kernels` could not make the kernels of a plan.

    Raises:
        UsageError: for a plan that compiles nothing or has several ranks, or a run of another
            machine or a file that is not here.
        PlanError: when the file cannot be written.
    """
    if not is_compiled(file.plan):
        raise UsageError(
            "--with-kernels: the plan has compile_mode=off, and only what torch.compile makes is "
            "kept; leave the option out, as this plan's first step compiles nothing"
        )
    if file.ranks is not None and file.ranks > 1:
        raise UsageError(
            f"--with-kernels: the plan is for {file.ranks} ranks, and kernels are kept for one; "
            "leave the option out"
        )
    if differing := list(_differences(file)):
        raise UsageError(
            f"--with-kernels: run {run.name} was measured with {', '.join(differing)}, and "
            "kernels are made on a machine like that; export them there"
        )
    workload = Path(run.new.workload_path)
    if not workload.exists() and file.command is None:
        raise UsageError(
            f"--with-kernels: there is no {workload}, and its kernels are made by training it; "
            "export them where it is"
        )
    check_place(kernels_path(plan_path))


def write_kernels(run: RunRecord, file: PlanFile, plan_path: Path) -> WrittenKernels:
    """Compile the plan in a trial of a few steps, and write its kernels beside the plan file.

    Raises:
        WorkloadError: when the workload raises.
        NothingRanError: when the plan, or keeping what it compiles, fails.
        PlanError: when the file cannot be written.
    """
    from autotune.agent.bench import Bench  # noqa: PLC0415  Ray's import takes a second

    begun = time.monotonic()
    target = _target(run, file)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-kernels-") as folder,
        Bench(target) as bench,
    ):
        made = Path(folder, "kernels")
        result = bench.compile(bench.subject(target, file.plan.values), made)
        written = _moved(made, kernels_path(plan_path))
    assert result.measurement is not None
    return WrittenKernels(
        path=written,
        num_bytes=written.stat().st_size,
        first_step_s=result.measurement.first_step_s,
        took_s=time.monotonic() - begun,
    )


def _differences(file: PlanFile) -> Iterator[str]:
    """Yield what is another here than where the plan was measured, with both values."""
    here = detect_hardware()
    pairs = {
        "device": (file.hardware.get("device_name"), here.device_name),
        "torch": (file.versions.get("torch"), dict(here.versions).get("torch")),
    }
    for name, (there, this) in pairs.items():
        if there != this:
            yield f"{name} {there} (here it is {this})"


def _target(run: RunRecord, file: PlanFile) -> Target:
    arguments = tuple(run.new.facts.get("arguments", ()))
    if file.command is None:
        return Target(path=Path(run.new.workload_path), arguments=arguments)
    return Target(path=Path.cwd() / file.command.script, command=file.command)


def _moved(made: Path, path: Path) -> Path:
    """Move a file in place of an older one, in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        shutil.copyfile(made, temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PlanError(f"cannot write {path}: {error.strerror}; choose another folder") from error
    return path
