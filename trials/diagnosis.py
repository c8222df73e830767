"""What limits a training step, as plain values. How it is found out: see `profiling`."""

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from autotune.search_space.bound import Bound


class FindingKind(enum.Enum):
    """What in the user's code costs speed, or depends on the batch; only they can change it."""

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
    """One thing in the user's code.

    Attributes:
        what: what it is and what it costs, in words.
        advice: what to do about it.
        file, line: where, as an absolute path and from 1; None where it is nowhere in particular.
    """

    kind: FindingKind
    what: str
    advice: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a step's time, which add up to 1. None: unknown, or there is no such thing here.

    Attributes:
        data: nothing goes on but waiting for a batch.
        copy: nothing but copying to the device.
        forward, backward, optimizer: computing.
        communication: nothing but communication between ranks.
        idle: a device has nothing to do, although the next batch is there.
        other: what is in none of these.
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
        bound: None where no cause could be made out.
        evidence: for the bound, in words with numbers.
        advice: what to do about it, with the names of knobs.
        shares: of the time of a step.
        causes: the same time by what would shorten it; empty where it is not known.
        how: share or quantity -> how it was obtained.
        flops_per_sample: the model's own floating-point operations for one sample, forward and
            backward; what checkpointing computes again is not among them.
        matmul_flops_per_s: what one device reaches in a large matrix product, measured in the
            plan's precision.
        mfu: model FLOPs utilisation: the model's operations per second and device over that rate.
        loader_samples_per_s: of one rank's loader with nothing else going on.
        step_samples_per_s: of one rank, as if batches came without waiting.
        ops_per_step: kernels on a device, operators without one.
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
    """Return the diagnosis that knows nothing, with the reason."""
    return Diagnosis(unknown={"everything": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRequest:
    """What to look at after a trial was measured.

    Attributes:
        trace_path: where to write the Chrome trace; None: nowhere.
        explain_graphs: look for graph breaks also where the plan does not compile, which takes
            seconds.
        flops_per_sample: as the probe counted them, for ranks, which do not count for themselves.
    """

    trace_path: str | None = None
    explain_graphs: bool = False
    flops_per_sample: float | None = None
