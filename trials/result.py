"""The result of a trial: its outcome, and its measurement where there is one. Plain values."""

import enum
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from autotune.trials.cause import Cause
from autotune.trials.diagnosis import Diagnosis
from autotune.trials.numerics_report import NumericsReport
from autotune.trials.quality import QualityCurve


class Outcome(enum.Enum):
    """How a trial ended.

    A trial is `submitted`, goes through its phases (`rendezvous` where there are several ranks,
    `build`, `first_step`, `warm_up`, `measure`, and `diagnose` where that is asked for) and ends
    in exactly one outcome. `ok` has a measurement; the rest are data about a plan, save `infra`
    and `cancelled`, which say nothing about it, so such plans may be tried again.
    """

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"
    CRASH = "crash"
    DIVERGED = "diverged"
    INVALID = "invalid"
    INFRA = "infra"
    CANCELLED = "cancelled"

    @property
    def is_about_plan(self) -> bool:
        """Whether running the same plan again would be expected to end the same way."""
        return self not in (Outcome.INFRA, Outcome.CANCELLED)


class Purpose(enum.Enum):
    """Why a trial is run."""

    BASELINE = "baseline"
    PRESET = "preset"
    LADDER = "ladder"
    NEIGHBOUR = "neighbour"
    SAMPLER = "sampler"
    CONFIRM = "confirm"
    ABLATE = "ablate"
    MEASURE = "measure"
    NUMERICS = "numerics"
    QUALITY = "quality"


class Phase(enum.Enum):
    """Where a trial is; each phase has its own deadline."""

    START = "start"
    RENDEZVOUS = "rendezvous"
    BUILD = "build"
    FIRST_STEP = "first_step"
    WARM_UP = "warm_up"
    MEASURE = "measure"
    DIAGNOSE = "diagnose"
    COMPARE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of steps timed as one, synchronised at both ends."""

    steps: int
    samples: int
    seconds: float
    data_wait_s: float

    @property
    def throughput(self) -> float:
        """Samples per second, waiting for data included."""
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured in the steady state. Unknown is None, never zero.

    Attributes:
        throughput: samples per second over all ranks, end to end, over all windows.
        throughput_low, throughput_high: 95 % interval of the mean over windows.
        step_ms: median over windows of the worst rank's; `step_ms_spread` their relative standard
            deviation.
        data_wait_share: part of the time that the loop waited in `next(loader)`, worst rank.
        peak_allocated_bytes, peak_reserved_bytes: device memory after warm-up, worst rank.
        peak_reserved_overall_bytes: the same from the start of the trial, compilation included.
        peak_host_bytes: resident memory of the training process, loader workers not included.
        alloc_retries: times the allocator had to flush its cache after warm-up.
        exposed_comm_share: part of the time in which a rank communicates and computes nothing,
            worst rank; None on one rank, and on the CPU.
        other_work_share: part of the time in which a script did something else than training, as
            validating and saving, which the throughput leaves out; None where it is not known, and
            for a workload's three functions, which only train.
        longest_batch_of: samples among which the longest batch was formed that the trial trained
            on after its first step, the fewest of any rank; None where batches are of one shape.
        recompile_limit_hits: functions that the compiler had compiled as often as its limit allows
            when they met yet another kind of input; that runs eagerly. None without a compiler.
        build_s, first_step_s, warm_up_s, measure_s: the phases; compilation is in first_step_s.
        first_loss, last_loss: of the trial's steps, mean over ranks; they show whether it trains.
        settled: the interval reached its target before the time cap.
        raced: stopped early, because its interval was below what was still interesting.
    """

    throughput: float
    throughput_low: float
    throughput_high: float
    step_ms: float
    step_ms_spread: float
    data_wait_share: float
    build_s: float
    first_step_s: float
    warm_up_s: float
    measure_s: float
    first_loss: float
    last_loss: float
    settled: bool
    raced: bool = False
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_reserved_overall_bytes: int | None = None
    peak_host_bytes: int | None = None
    alloc_retries: int | None = None
    exposed_comm_share: float | None = None
    other_work_share: float | None = None
    longest_batch_of: int | None = None
    recompile_limit_hits: int | None = None
    windows: tuple[Window, ...] = ()

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of the whole trial: of the device where there is one, else of the host."""
        if self.peak_reserved_overall_bytes is not None:
            return self.peak_reserved_overall_bytes
        return self.peak_host_bytes

    @property
    def log_half_width(self) -> float:
        """Half the throughput's interval, in the logarithm."""
        return math.log(self.throughput_high / self.throughput_low) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How a trial ended.

    Attributes:
        outcome: see `Outcome`; `measurement` is there exactly for `ok` (and not for numerics and
            quality).
        quality: what `evaluate` returned, where the trial trained to a target.
        diagnosis: what limits the step, where it was asked for.
        cause: why it ended, where the outcome does not say it; see `Cause`.
        error: one line for tables; None for `ok`.
        traceback: from the first frame of the user's code on.
        user_error: the exception came from the user's code, not from autotune or torch.
        phase: in which it ended.
        peer_lost: this rank failed only because another one was lost.
        requested_bytes: for `oom`, the memory asked for, where known.
        log_tail: the end of what the trial printed.
        overhead_s: time outside build, first step, warm-up and measurement: starting the
            process, reaping it, waiting for its memory to be free.
        total_s: from submission to the device being free again.
    """

    outcome: Outcome
    measurement: Measurement | None = None
    numerics: NumericsReport | None = None
    quality: QualityCurve | None = None
    diagnosis: Diagnosis | None = None
    cause: Cause | None = None
    error: str | None = None
    traceback: str | None = None
    user_error: bool = False
    peer_lost: bool = False
    phase: Phase = Phase.START
    requested_bytes: int | None = None
    log_tail: str = ""
    overhead_s: float | None = None
    total_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {
            **asdict(self),
            "outcome": self.outcome.value,
            "phase": self.phase.value,
            "cause": self.cause and self.cause.value,
            "numerics": self.numerics and self.numerics.to_dict(),
            "quality": self.quality and self.quality.to_dict(),
            "diagnosis": self.diagnosis and self.diagnosis.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrialResult":
        """Build from what `to_dict` gave."""
        measurement, numerics = values["measurement"], values["numerics"]
        diagnosis, cause = values.get("diagnosis"), values.get("cause")
        quality = values.get("quality")
        return cls(
            **{
                **values,
                "outcome": Outcome(values["outcome"]),
                "phase": Phase(values["phase"]),
                "cause": cause and Cause(cause),
                "diagnosis": diagnosis and Diagnosis.from_dict(diagnosis),
                "measurement": measurement and measurement_from_dict(measurement),
                "numerics": numerics and NumericsReport.from_dict(numerics),
                "quality": quality and QualityCurve.from_dict(quality),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A result that is kept however the trial ends, as only its diagnosis is still to come."""

    result: TrialResult


def measurement_from_dict(values: dict[str, Any]) -> Measurement:
    """Build a measurement from plain values; `windows` may be missing."""
    known = {f.name for f in fields(Measurement)}
    plain = {key: value for key, value in values.items() if key in known}
    plain["windows"] = tuple(Window(**window) for window in values.get("windows", ()))
    return Measurement(**plain)
