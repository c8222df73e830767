"""The numerics check: single steps of a plan beside eager fp32, from the same weights.

Trainings that are both right may part soon: large steps from a random start are chaotic. So no
two trainings are compared. Eager fp32 takes a few steps, and the plan takes each of them again,
from the same weights, on the same batch and with the same random numbers. Its loss, its gradients
and what it changes are judged by how far eager fp32 is from itself when its weights are moved by
as much as the plan's number format rounds.
"""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from autotune.errors import WorkloadError
from autotune.search_space.knobs import BY_NAME, Numerics, is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.construction import copies_fit, num_bytes
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.optimizer import build_optimizer
from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed
from autotune.trials.numerics.gaps import StepGaps
from autotune.trials.numerics.judge import (
    Yardstick,
    is_lost_in_rounding,
    judged,
    settings_judged,
)
from autotune.trials.numerics.state import CannotCompareError
from autotune.trials.numerics.steps import Recorded, record, retaken, settings_of
from autotune.trials.numerics.training import Batches, Training
from autotune.trials.numerics_report import NumericsReport
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.workload import Workload, load_again

# Steps that come first: one makes the optimizer's state; a plan that records CUDA graphs takes
# three real ones, and the next is recorded.
_FIRST_STEPS, _FIRST_STEPS_RECORDED = 1, 4
_RECORD_NOTHING = ("off", "default", "max-autotune-no-cudagraphs")
_OTHER_SEED = 1_000_000
# Copies of weights and gradients lie on a GPU of which they take no larger part, else on the host.
_SHARE_OF_DEVICE = 1 / 8
# How far a number may be from the nearest one that a format has, as a part of itself.
UNIT_ROUNDOFF = {
    "fp8": torch.finfo(torch.float8_e4m3fn).eps / 2,  # of weights and activations
    "bf16": torch.finfo(torch.bfloat16).eps / 2,
    "fp16": torch.finfo(torch.float16).eps / 2,
    "tf32": torch.finfo(torch.float16).eps / 2,  # as many bits as fp16, in the range of fp32
    "fp32": torch.finfo(torch.float32).eps / 2,
}


def compare(
    workload: Workload,
    plan: Plan,
    reference: Plan,
    device: torch.device,
    seed: int,
    ranks: Ranks = ALONE,
) -> NumericsReport:
    """Take the same steps by both plans, and report how far they are apart.

    Both plans must use the same batch size and accumulation. All ranks must call it, and all get
    the same report.
    """
    began = time.perf_counter()
    check = _Check(plan, reference, device, seed, ranks)
    try:
        report = check.report(workload, workload)
        if not report.passed:
            # What the workload's file keeps, such as a counter, was used by the reference already.
            with contextlib.suppress(WorkloadError):  # a file that cannot be loaded twice
                report = check.report(load_again(workload), load_again(workload))
    except CannotCompareError as error:
        report = NumericsReport(unchecked=str(error))
    (seconds,) = ranks.worst(time.perf_counter() - began)
    return replace(report, seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What eager fp32 does, and how far it is from itself."""

    recorded: Recorded
    yardstick: Yardstick
    redrawn: list[StepGaps]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the plan did: how far its steps are, its optimizer's settings, if it drew numbers."""

    gaps: list[StepGaps]
    settings: list[dict[str, Any]]
    is_random: bool


@dataclass(frozen=True, slots=True)
class _Check:
    """Two plans, and what both are run with."""

    plan: Plan
    reference: Plan
    device: torch.device
    seed: int
    ranks: Ranks

    def report(self, own: Workload, references: Workload) -> NumericsReport:
        """Take the steps of the reference, then those of the plan, each with its own workload."""
        batches = self._batches(references)
        expected = self._expected(references, batches)
        taken = self._taken(own, batches, expected)
        report = self._judged(taken, expected)
        if not report.passed and expected.redrawn and is_compiled(self.plan):
            # Compiled dropout draws other random numbers than eager dropout. Make it draw the
            # same, which compiles anew, only where it matters.
            with _eager_random_numbers():
                taken = self._taken(own, batches, expected)
            report = self._judged(taken, expected)
        if not report.passed and expected.redrawn and taken.is_random:
            report = self._judged(taken, expected, redrawn=expected.redrawn)
        return report

    def _batches(self, workload: Workload) -> list[Batches]:
        in_process = Plan.of({**self.plan.values, "workers": 0, "pin_memory": False})
        feed = Feed(build_loader(workload, in_process, self.seed, self.ranks))
        micro_steps = range(int(self.plan.get("accumulation", 1)))
        num_steps = self._num_before() + COMPARED_STEPS
        return [[feed.next() for _ in micro_steps] for _ in range(num_steps)]

    def _num_before(self) -> int:
        is_recorded = self.plan.get("cuda_graph", "off") != "off"
        has_graphs = self.plan.get("compile_mode", "off") not in _RECORD_NOTHING
        return _FIRST_STEPS_RECORDED if is_recorded or has_graphs else _FIRST_STEPS

    def _expected(self, workload: Workload, batches: list[Batches]) -> _Expected:
        with build_step(workload, self.reference, self.device, self.seed, self.ranks) as step:
            training = Training(step, batches, self.seed, self.ranks)
            store = self._store(step.model, len(batches))
            recorded = record(training, self._num_before(), store, self.ranks)
            training.gradients.detach()
            again = partial(self._again, workload, step, batches, recorded)
            rounded = again(rounded_by=UNIT_ROUNDOFF[self._format()])
            is_lost = is_lost_in_rounding(rounded)
            yardstick = Yardstick(
                numerics=widest_class(self.plan, self.reference),
                rounded=rounded,
                in_fp32=again(rounded_by=UNIT_ROUNDOFF["fp32"]) if is_lost else (),
            )
            redrawn = again(seed=self.seed + _OTHER_SEED) if recorded.is_random else []
        del step, training, again
        _free(self.device)
        return _Expected(recorded, yardstick, redrawn)

    def _again(
        self,
        workload: Workload,
        step: Step,
        batches: list[Batches],
        recorded: Recorded,
        *,
        rounded_by: float = 0.0,
        seed: int | None = None,
    ) -> list[StepGaps]:
        """Take the steps again by the reference itself, with a new optimizer."""
        step.optimizer = build_optimizer(workload, self.reference, step.model, self.ranks.place)
        training = Training(step, batches, self.seed if seed is None else seed, self.ranks)
        gaps = retaken(training, recorded, self.ranks, rounded_by=rounded_by)
        training.gradients.detach()
        return gaps

    def _taken(self, workload: Workload, batches: list[Batches], expected: _Expected) -> _Taken:
        with build_step(workload, self.plan, self.device, self.seed, self.ranks) as step:
            training = Training(step, batches, self.seed, self.ranks)
            gaps = retaken(training, expected.recorded, self.ranks)
            (is_random,) = self.ranks.worst(training.has_drawn)
            taken = _Taken(gaps, settings_of(step.optimizer), bool(is_random))
        del step, training
        _free(self.device)
        return taken

    def _judged(
        self, taken: _Taken, expected: _Expected, redrawn: Sequence[StepGaps] = ()
    ) -> NumericsReport:
        yardstick = replace(expected.yardstick, redrawn=redrawn)
        found = judged(taken.gaps, yardstick)
        found += settings_judged(taken.settings, expected.recorded.settings)
        return NumericsReport(
            reference_losses=tuple(gaps.expected_loss for gaps in taken.gaps),
            plan_losses=tuple(gaps.loss for gaps in taken.gaps),
            deviations=tuple(found),
            format=self._format(),
        )

    def _format(self) -> str:
        """Return the format that rounds most, among those that the plan computes or sends in."""
        formats = [str(self.plan.get("precision", "fp32"))]
        if self.plan.get("comm_hook", "none") != "none":
            formats.append(str(self.plan["comm_hook"]))
        if self.device.type == "cuda" and _may_use_tf32():
            formats.append("tf32")
        return max(formats, key=UNIT_ROUNDOFF.__getitem__)

    def _store(self, model: nn.Module, num_steps: int) -> torch.device:
        """Return where to keep the weights after each step, and the compared ones' gradients.

        Raises:
            CannotCompareError: where they fit nowhere.
        """
        size_bytes = num_bytes(model) * (1 + num_steps + COMPARED_STEPS)
        if self.device.type == "cuda":
            _, total_bytes = torch.cuda.mem_get_info(self.device)
            if size_bytes <= _SHARE_OF_DEVICE * total_bytes:
                return self.device
        if not copies_fit(size_bytes, self.ranks.place.local_world_size):
            raise CannotCompareError(
                f"the weights of {num_steps} steps ({size_bytes / 2**30:,.0f} GiB on each rank) "
                "do not fit into the host's memory"
            )
        return torch.device("cpu")


def _free(device: torch.device) -> None:
    gc.collect()  # wrapped models hold themselves in cycles, and the next one needs their memory
    if device.type == "cuda":
        torch.cuda.empty_cache()  # how much is free decides where the next one is built


def _may_use_tf32() -> bool:
    """Whether fp32 may be computed in tf32: torch lets cuDNN do so, and users others, too."""
    try:
        return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # the workload uses the settings of torch 2.9, which do not mix with it
        return True


@contextlib.contextmanager
def _eager_random_numbers() -> Iterator[None]:
    from torch._inductor import config  # noqa: PLC0415  seconds that only this case needs

    torch.compiler.reset()
    with config.patch(fallback_random=True):
        yield


def widest_class(plan: Plan, reference: Plan) -> Numerics:
    """Return the widest numerics class among the knobs that differ."""
    changed = [BY_NAME[name].numerics for name in plan.diff(reference) if name in BY_NAME]
    return max(changed, key=lambda numerics: numerics.rank, default=Numerics.EXACT)
