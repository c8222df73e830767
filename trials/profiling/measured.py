"""A measured step, and what its breakdown says of it."""

from dataclasses import dataclass

import torch
from torch import nn

from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import Diagnosis, Shares
from autotune.trials.profiling.bound import Circumstances, Verdict, judge
from autotune.trials.profiling.breakdown import Breakdown, Steps, on_device, on_host
from autotune.trials.profiling.trace import Operation
from autotune.trials.result import Measurement

BRIEF = "only what limits the step was looked at"
COUNTED_BEFORE = "matrix products, convolutions and attention, counted by the probe"
HOW = {
    "matmul_flops_per_s": "the best of some large square products in the plan's precision",
    "loader_samples_per_s": "read for a moment while nothing else runs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step whose throughput was measured.

    Attributes:
        device: that it ran on.
        plan: that it ran under.
        model: that it trained.
        accumulation: micro-batches of the step.
        world_size: of the trial.
        measurement: of the trial.
    """

    device: torch.device
    plan: Plan
    model: nn.Module
    accumulation: int
    world_size: int
    measurement: Measurement

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.measurement.step_ms / 1e3

    @property
    def batch_size(self) -> int:
        """Samples of a rank in a batch."""
        return int(self.plan["batch_size"])

    @property
    def precision(self) -> str:
        """That the plan computes in."""
        return str(self.plan.get("precision", "fp32"))

    @property
    def rank_samples_per_s(self) -> float:
        """Throughput of one rank."""
        return self.measurement.throughput / self.world_size

    @property
    def samples_per_s_without_waiting(self) -> float | None:
        """Throughput of one rank whose batches are always there."""
        computing = 1.0 - self.measurement.data_wait_share
        return self.rank_samples_per_s / computing if computing > 0 else None

    def broken_down(self, operations: list[Operation], traced: int) -> Breakdown:
        """Return where the time of a step goes.

        Args:
            operations: of the traced steps.
            traced: how many these are.

        Raises:
            LookupError: when nothing ran in them.
        """
        steps = Steps(
            traced=traced,
            step_s=self.step_s,
            data_wait_share=self.measurement.data_wait_share,
        )
        break_down = on_device if self.device.type == "cuda" else on_host
        found = break_down(operations, steps)
        if found is None:
            raise LookupError("the profiler's trace holds nothing that ran")
        return found

    def _verdict(
        self,
        breakdown: Breakdown,
        flops_per_sample: float | None,
        matmul_flops_per_s: float | None,
        num_host_syncs: int,
    ) -> Verdict:
        flops = flops_per_sample and flops_per_sample * self.batch_size * self.accumulation
        known = Circumstances(
            device_kind=self.device.type,
            precision=self.precision,
            step_s=self.step_s,
            flops_per_step=flops,
            matmul_flops_per_s=matmul_flops_per_s,
            alloc_retries=self.measurement.alloc_retries,
            num_host_syncs=num_host_syncs,
            has_conv2d=any(isinstance(part, nn.Conv2d) for part in self.model.modules()),
        )
        return judge(breakdown, known)

    def utilisation(
        self, flops_per_sample: float | None, matmul_flops_per_s: float | None
    ) -> float | None:
        """Return the MFU (PaLM, https://arxiv.org/abs/2204.02311, appendix B).

        The rate of a large matrix product stands for the device's peak; None where a rate is
        unknown.
        """
        if flops_per_sample is None or not matmul_flops_per_s:
            return None
        return flops_per_sample * self.rank_samples_per_s / matmul_flops_per_s

    def diagnosis(
        self,
        breakdown: Breakdown | None,
        flops_per_sample: float | None,
        matmul_flops_per_s: float | None,
        num_host_syncs: int = 0,
    ) -> Diagnosis:
        """Return what follows from a breakdown; without one little is known.

        Args:
            breakdown: of the step.
            flops_per_sample: as the probe counted them; None: unknown.
            matmul_flops_per_s: as in `Circumstances`.
            num_host_syncs: as in `Circumstances`.
        """
        rates = flops_per_sample, matmul_flops_per_s
        verdict = breakdown and self._verdict(breakdown, *rates, num_host_syncs)
        return Diagnosis(
            bound=verdict.bound if verdict else None,
            evidence=verdict.evidence if verdict else (),
            advice=verdict.advice if verdict else (),
            shares=breakdown.shares if breakdown else Shares(),
            causes=breakdown.causes if breakdown else {},
            how={
                **(breakdown.how if breakdown else {}),
                **HOW,
                "flops_per_sample": COUNTED_BEFORE,
            },
            flops_per_sample=flops_per_sample,
            matmul_flops_per_s=matmul_flops_per_s,
            mfu=self.utilisation(*rates),
            step_samples_per_s=self.samples_per_s_without_waiting,
            ops_per_step=breakdown.ops_per_step if breakdown else None,
        )
