"""Diagnoses of what limits a training step, as plain values. `profiling` makes them."""

import enum
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from autotune.search_space.bound import Bound


class FindingKind(enum.Enum):
    """What in the user's code costs speed or depends on the batch, and no knob can change."""

    GRAPH_BREAK = "graph_break"
    HOST_SYNC = "host_sync"
    PRINT = "print"
    SHAPE = "shape"
    LOADER = "loader"
    BATCH_LOSS = "batch_loss"
    ATTENTION = "attention"
    ANTI_PATTERN = "anti_pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place or habit in the user's code that costs speed.

    Attributes:
        what: what it is and what it costs, in words.
        advice: what to do about it.
        file, line: an absolute path, and from 1; None where it is in no single line.
    """

    kind: FindingKind
    what: str
    advice: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a step's time, which add up to 1. None: unknown, or not part of such a step.

    Attributes:
        data: waiting for a batch, while nothing else runs.
        copy: copying to the device, while nothing else runs.
        forward, backward, optimizer: computing.
        communication: between ranks, while nothing is computed.
        idle: the device runs nothing, although the batch is there.
        other: the rest.
    """

    data: float | None = None
    copy: float | None = None
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    communication: float | None = None
    idle: float | None = None
    other: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits the step of one trial. Unknown is None, and `unknown` says why.

    Attributes:
        bound: None where none was found.
        evidence: for the bound, in sentences with numbers.
        advice: what to do about it, with the names of knobs.
        shares: of the time of a step.
        causes: shares of the same time by the bound that they belong to; empty where unknown.
        how: share or quantity -> how it was obtained.
        flops_per_sample: the model's own floating-point operations for one sample, forward and
            backward, without what checkpointing computes again.
        matmul_flops_per_s: the rate of one device in a large matrix product, measured in the
            plan's precision.
        mfu: model FLOPs utilisation: the model's operations per second and device over that rate.
        loader_samples_per_s: of one rank's loader alone.
        step_samples_per_s: of one rank's step if it never waited for a batch.
        ops_per_step: kernels on a device, operators without one.
        one_thread_speedup: speed of the step with one thread over that with the plan's threads,
            seen for a few steps on a CPU.
        findings: in the user's code.
        unknown: what is not known -> why.
        trace_path: the Chrome trace, where one was asked for.
        took_s: seconds of the diagnosis itself.
    """

    bound: Bound | None = None
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    shares: Shares = field(default_factory=Shares)
    causes: dict[Bound, float] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    flops_per_sample: float | None = None
    matmul_flops_per_s: float | None = None
    mfu: float | None = None
    loader_samples_per_s: float | None = None
    step_samples_per_s: float | None = None
    ops_per_step: float | None = None
    one_thread_speedup: float | None = None
    findings: tuple[Finding, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)
    trace_path: str | None = None
    took_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {
            **asdict(self),
            "bound": None if self.bound is None else self.bound.value,
            "evidence": list(self.evidence),
            "causes": {cause.value: share for cause, share in self.causes.items()},
            "advice": list(self.advice),
            "findings": [{**asdict(f), "kind": f.kind.value} for f in self.findings],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build from what `to_dict` gave."""
        plain = {
            **values,
            "bound": None if values["bound"] is None else Bound(values["bound"]),
            "evidence": tuple(values["evidence"]),
            "advice": tuple(values["advice"]),
            "shares": Shares(**values["shares"]),
            "causes": {Bound(cause): s for cause, s in values.get("causes", {}).items()},
            "findings": tuple(
                Finding(**{**finding, "kind": FindingKind(finding["kind"])})
                for finding in values["findings"]
            ),
        }
        return cls(**plain)


def undiagnosed(why: str) -> Diagnosis:
    """Return the diagnosis in which everything is unknown, with the reason."""
    return Diagnosis(unknown={"everything": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRequest:
    """What to find out after a trial was measured.

    Attributes:
        trace_path: where to write the Chrome trace; None: nowhere.
        explain_graphs: whether to look for graph breaks also where the plan does not compile,
            which takes seconds.
        flops_per_sample: as the probe counted them; needed with several ranks, which do not count.
        above: samples per second from which the trial is diagnosed; slower ones are not.
        brief: whether only what limits the step is asked for, and nothing about the user's code.
        within_s: seconds after which no further part of the diagnosis is begun.
    """

    trace_path: str | None = None
    explain_graphs: bool = False
    flops_per_sample: float | None = None
    above: float = 0.0
    brief: bool = False
    within_s: float = math.inf
