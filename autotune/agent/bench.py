"""Measures plans in fresh processes of this machine, one after the other, without a search."""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from autotune.agent.spaces import this_machine
from autotune.dispatch.clusters import LocalCluster
from autotune.errors import NothingRanError, UsageError, WorkloadError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import NAMED_IN_FULL, Space, build_space
from autotune.search_space.target import Target
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.request import Deadlines, ProbeRequest, Protocol, RankPlace, TrialRequest
from autotune.trials.result import Outcome, Purpose, TrialResult

LOG_DIR = Path("autotune-logs")
PROBE_TIMEOUT_S = 300.0
# Seconds after which a measurement is given up; its user may stop it before.
_PATIENCE_S = 3600.0
# For a trial whose speed does not matter: windows until there are two, however they vary.
_A_FEW_STEPS = Protocol(window_s=0.01, min_windows=2, target_interval=1.0, max_measure_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A plan of a target, to be measured in a folder.

    Attributes:
        target: what is measured.
        working_dir: what relative paths of the workload are relative to.
        facts: what the probe found.
        plan: with a value for each knob.
        baseline: the target's own configuration.
    """

    target: Target
    working_dir: Path
    facts: WorkloadFacts
    plan: Plan
    baseline: Plan


class Bench:
    """Measures plans in fresh processes of this machine, one after the other.

    Use it as a context manager; at its end all processes are gone.

    Args:
        target: whose imports are prepared at once; others may be measured as well.
        num_ranks: devices of a measurement, with a process each.
        seed: of parameters and data order.
        protocol: the numbers of the measurement protocol; None: those that trials have.
        limit_s: the seconds after which a measurement is given up; None: its deadlines end it.

    Raises:
        UsageError: when devices are too few.
    """

    def __init__(
        self,
        target: Target,
        *,
        num_ranks: int = 1,
        seed: int = 0,
        protocol: Protocol | None = None,
        limit_s: float | None = None,
    ) -> None:
        # Ray's import takes a second, and `--help` needs none.
        from autotune.dispatch.ray_runner import RayRunner  # noqa: PLC0415

        self.hardware = this_machine(num_ranks)
        self.num_ranks, self._seed = num_ranks, seed
        self._protocol, self._limit_s = protocol or Protocol(), limit_s
        self._num_measured = 0
        self._exit_stack = ExitStack()
        self._cluster = self._exit_stack.enter_context(
            LocalCluster(self.hardware, target.path, target.command)
        )
        self._runner = self._exit_stack.enter_context(
            RayRunner(self._cluster, log_dir=new_log_dir())
        )

    def subject(
        self, target: Target, values: Mapping[str, Value], working_dir: Path | None = None
    ) -> Subject:
        """Look at a target, and return what is to be measured.

        Args:
            target: of this machine.
            values: knobs of the plan; the rest is the baseline's.
            working_dir: what relative paths are relative to; None: the current folder.

        Raises:
            WorkloadError: when the workload breaks its contract or raises.
            UsageError: when the plan has an unknown knob or value.
        """
        folder = working_dir or Path.cwd()
        self._cluster.start_probe(probe_request(target, self.hardware, self._seed, folder))
        self._runner.start()
        facts = self._cluster.facts(PROBE_TIMEOUT_S)
        check_ranks(facts, self.num_ranks)
        space = self._space(facts)
        return Subject(
            target=target,
            working_dir=folder,
            facts=facts,
            plan=space.plan(values),
            baseline=space.baseline,
        )

    def with_plan(self, subject: Subject, values: Mapping[str, Value]) -> Subject:
        """Return the subject with another plan, without another look at its target.

        Raises:
            PlanError: when the plan has an unknown knob or value, or values that exclude others.
        """
        return replace(subject, plan=self._space(subject.facts).plan(values))

    def _space(self, facts: WorkloadFacts) -> Space:
        return build_space(facts, self.hardware, NAMED_IN_FULL, self.num_ranks)

    def measure(self, subject: Subject, diagnosis: DiagnosisRequest | None = None) -> TrialResult:
        """Return what fresh processes measured.

        Args:
            subject: of `subject`.
            diagnosis: what to diagnose afterwards in the same process; None: nothing.

        Raises:
            WorkloadError: when the workload raises.
            NothingRanError: when the plan ended in anything but a measurement.
        """
        return self._run(replace(self._trial_request(subject), diagnosis=diagnosis))

    def compile(self, subject: Subject, kernels_path: Path) -> TrialResult:
        """Take a few steps in fresh processes, and write what the compiler made for them.

        Args:
            subject: of `subject`; its plan compiles.
            kernels_path: the file to write, in an empty folder.

        Raises:
            WorkloadError: when the workload raises.
            NothingRanError: when the plan ended in anything but a measurement.
        """
        request = self._trial_request(subject)
        return self._run(replace(request, protocol=_A_FEW_STEPS, kernels_path=str(kernels_path)))

    def _run(self, request: TrialRequest) -> TrialResult:
        self._num_measured += 1
        self._runner.submit(request)
        while not (finished := self._runner.wait(1.0)):
            pass
        result = finished[0].result
        if result.user_error:
            raise WorkloadError(str(result.error), result.traceback or "")
        if result.outcome is not Outcome.OK:
            raise NothingRanError(_describe_failure(result))
        return result

    def _trial_request(self, subject: Subject) -> TrialRequest:
        return TrialRequest(
            number=self._num_measured + 1,
            plan=subject.plan,
            purpose=Purpose.MEASURE,
            workload_path=str(subject.target.path),
            working_dir=str(subject.working_dir),
            device_kind=self.hardware.device_kind,
            seed=self._seed,
            protocol=self._protocol,
            deadlines=Deadlines.within(_PATIENCE_S),
            give_up_after_s=self._limit_s,
            place=RankPlace(world_size=self.num_ranks),
            command=subject.facts.command,
            arguments=subject.facts.arguments,
            uneven_batches=subject.facts.uneven_batches,
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End all processes."""
        self._exit_stack.close()


def probe_request(
    target: Target, hardware: Hardware, seed: int, working_dir: Path | None = None
) -> ProbeRequest:
    """Return what the probe is asked about a target, by default in the current folder."""
    return ProbeRequest(
        workload_path=str(target.path),
        working_dir=str(working_dir or Path.cwd()),
        hardware=hardware,
        seed=seed,
        command=target.command,
        arguments=target.arguments,
    )


def check_ranks(facts: WorkloadFacts, num_ranks: int) -> None:
    """Raise an error where a command starts another number of ranks than a trial has devices.

    Raises:
        UsageError: with the number to give.
    """
    if facts.command is not None and facts.world_size != num_ranks:
        raise UsageError(
            f"the command trains with {facts.world_size} processes together, and --gpus-per-trial "
            f"is {num_ranks}; give --gpus-per-trial {facts.world_size}"
        )


def new_log_dir() -> Path:
    """Return a folder for the logs of this process, below the current folder."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path.cwd() / LOG_DIR / f"{stamp}-{os.getpid()}"


def _describe_failure(result: TrialResult) -> str:
    """Return how a trial failed, in words, with the end of its output."""
    text, error = f"the trial ended as {result.outcome.value}", str(result.error)
    phase = f"in phase {result.phase.value}"
    where = "" if phase in error else f" {phase}"
    tail = result.traceback or result.log_tail
    return f"{text}{where}: {error}" + (f"\n{tail.rstrip()}" if tail else "")
