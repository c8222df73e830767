"""Requests to trial processes and to the probe, as plain values."""

from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.search_space.command import Command
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.quality import QualityRequest
from autotune.trials.result import Phase, Purpose

COMPARED_STEPS = 2
"""Optimizer steps of a numerics check that are compared, after one or a few that are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The numbers of the measurement protocol; the defaults are the product's promise.

    Attributes:
        window_s: shortest window, synchronised at both ends.
        min_windows: before the interval may end the measurement.
        target_interval: half width of the 95 % interval over the mean at which to stop.
        max_measure_s: time cap of the windows together.
        max_warm_up_s: time cap of warming up.
        min_warm_up_steps: so many, as CUDA-graph modes record during the first steps.
    """

    window_s: float = 0.25
    min_windows: int = 5
    target_interval: float = 0.01
    max_measure_s: float = 10.0
    max_warm_up_s: float = 10.0
    min_warm_up_steps: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The numbers of one rank among the others of its trial, as torchrun gives them.

    Attributes:
        rank, world_size: over all nodes.
        local_rank, local_world_size: on this node; `cuda:{local_rank}` is its device.
        master_addr, master_port: where rank 0 waits for the others.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a trial that is still in a phase is killed, with outcome `timeout`.

    The defaults are those of a short budget; `within` lengthens them for a longer one.
    """

    start_s: float = 180.0
    rendezvous_s: float = 120.0
    build_s: float = 120.0
    first_step_s: float = 600.0
    warm_up_s: float = 120.0
    measure_s: float = 120.0
    diagnose_s: float = 120.0
    compare_s: float = 300.0

    @classmethod
    def within(cls, budget_s: float) -> "Deadlines":
        """Return the deadlines of trials in a budget: each at least a twentieth of it."""
        shortest = asdict(cls())
        return cls(**{name: max(phase_s, budget_s / 20) for name, phase_s in shortest.items()})

    def of(self, phase: Phase) -> float:
        """Return the seconds allowed for `phase`."""
        return float(getattr(self, f"{phase.value}_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One plan to run once.

    Attributes:
        number: of the trial in its run, from 1; names its log file.
        workload_path: absolute path of the user's model.py.
        working_dir: where the user typed the command, and what relative paths in the workload are
            relative to.
        device_kind: `cpu` or `cuda`.
        compare_with: run the numerics check against this plan instead of measuring.
        diagnosis: asked for after the measurement; None: no diagnosis.
        interesting_above: throughput below which the trial may stop early; None: never.
        give_up_after_s: the driver cancels the trial after this long, whatever its phase; None:
            never.
        give_up_cause: the cause of the cancelled trial's result.
        memory_limit_bytes: the device memory that each rank may reserve; None: all of it.
        place: which rank of the trial this process is.
        command: the command that trains; None: the workload's functions do.
        arguments: what `sys.argv` holds beside the workload's name while it is imported.
        quality: train to a target instead of measuring; None: measure.
        kernels_path: the file for the kernels that the compiler makes; beside it the compiler has
            an empty cache folder of its own. None: they are not kept.
        uneven_batches: whether batches differ in shape; then the longest one is trained on, too.
    """

    number: int
    plan: Plan
    purpose: Purpose
    workload_path: str
    working_dir: str
    device_kind: str
    seed: int = 0
    protocol: Protocol = field(default_factory=Protocol)
    deadlines: Deadlines = field(default_factory=Deadlines)
    compare_with: Plan | None = None
    diagnosis: DiagnosisRequest | None = None
    interesting_above: float | None = None
    give_up_after_s: float | None = None
    give_up_cause: Cause = Cause.BUDGET_ENDED
    memory_limit_bytes: int | None = None
    place: RankPlace = field(default_factory=RankPlace)
    command: Command | None = None
    arguments: tuple[str, ...] = ()
    quality: QualityRequest | None = None
    kernels_path: str | None = None
    uneven_batches: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {
            **asdict(self),
            "plan": self.plan.values,
            "purpose": self.purpose.value,
            "give_up_cause": self.give_up_cause.value,
            "compare_with": None if self.compare_with is None else self.compare_with.values,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrialRequest":
        """Build from what `to_dict` gave."""
        reference, diagnosis = values["compare_with"], values["diagnosis"]
        command, quality = values.get("command"), values.get("quality")
        return cls(
            **{
                **values,
                "plan": Plan.of(values["plan"]),
                "purpose": Purpose(values["purpose"]),
                "give_up_cause": Cause(values["give_up_cause"]),
                "protocol": Protocol(**values["protocol"]),
                "deadlines": Deadlines(**values["deadlines"]),
                "compare_with": None if reference is None else Plan.of(reference),
                "diagnosis": diagnosis and DiagnosisRequest(**diagnosis),
                "place": RankPlace(**values["place"]),
                "command": command and Command.from_dict(command),
                "quality": quality and QualityRequest(**quality),
                "arguments": tuple(values.get("arguments", ())),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A request to probe a workload, without training it.

    Attributes:
        workload_path: absolute path of the user's model.py.
        working_dir: where the user typed the command.
        hardware: on which trials will run.
        command: the command to observe for a few steps; None: the workload's functions are called.
        arguments: see `TrialRequest`.
    """

    workload_path: str
    working_dir: str
    hardware: Hardware
    seed: int = 0
    command: Command | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a workload cannot be tuned: the error and the user's traceback."""

    error: str
    traceback: str
