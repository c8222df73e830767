"""What a trial process is asked to do. Plain values that travel to another process."""

from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.result import Phase, Purpose

COMPARED_STEPS = 2
"""Optimizer steps of a numerics check that are compared, after one or a few that are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The numbers of the measurement protocol; the defaults are the product's promise.

    Attributes:
        window_s: shortest window, synchronised at both ends.
        min_windows: before any interval is believed.
        target_interval: half width of the 95 % interval over the mean at which to stop.
        max_measure_s: time cap of the windows together.
        max_warm_up_s: time cap of warming up.
        min_warm_up_steps: CUDA-graph modes record during the first steps.
    """

    window_s: float = 0.25
    min_windows: int = 5
    target_interval: float = 0.01
    max_measure_s: float = 10.0
    max_warm_up_s: float = 10.0
    min_warm_up_steps: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank of a trial stands among the others, as torchrun numbers them.

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
    """Seconds after which each phase is killed; a hang ends there, as a `timeout`.

    These are the least: a longer budget is more patient, see `within`.
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
        """Return those of a trial in a budget, of which a phase may take a twentieth."""
        least = asdict(cls())
        return cls(**{name: max(least_s, budget_s / 20) for name, least_s in least.items()})

    def of(self, phase: Phase) -> float:
        """Return the seconds allowed for `phase`."""
        return float(getattr(self, f"{phase.value}_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One plan to run once.

    Attributes:
        number: of the trial in its run, from 1; names its log file.
        workload_path: absolute path of the user's model.py.
        working_dir: where the user typed the command; relative paths in the workload start there.
        device_kind: `cpu` or `cuda`.
        compare_with: run the numerics check against this plan instead of measuring.
        diagnosis: what to look at once the plan is measured; None: nothing.
        interesting_above: throughput below which the trial may stop early; None: never.
        give_up_after_s: the driver cancels the trial after this long, whatever its phase; None:
            never.
        give_up_reason: what it says then.
        memory_limit_bytes: the device memory that each rank may reserve.
        place: which rank of the trial this process is.
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
    give_up_reason: str = "the budget ended"
    memory_limit_bytes: int | None = None
    place: RankPlace = field(default_factory=RankPlace)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {
            **asdict(self),
            "plan": self.plan.values,
            "purpose": self.purpose.value,
            "compare_with": None if self.compare_with is None else self.compare_with.values,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrialRequest":
        """Build from what `to_dict` gave."""
        reference, diagnosis = values["compare_with"], values["diagnosis"]
        return cls(
            **{
                **values,
                "plan": Plan.of(values["plan"]),
                "purpose": Purpose(values["purpose"]),
                "protocol": Protocol(**values["protocol"]),
                "deadlines": Deadlines(**values["deadlines"]),
                "compare_with": None if reference is None else Plan.of(reference),
                "diagnosis": diagnosis and DiagnosisRequest(**diagnosis),
                "place": RankPlace(**values["place"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A workload to look at, without training it.

    Attributes:
        workload_path: absolute path of the user's model.py.
        working_dir: where the user typed the command.
        hardware: that trials will run on.
    """

    workload_path: str
    working_dir: str
    hardware: Hardware
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What is wrong with a workload, and the user's own traceback."""

    error: str
    traceback: str
