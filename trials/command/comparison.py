"""The numerics check of a command: passes of its model under a plan, beside those without.

Before the script calls the model in its second and third step, the model runs on that batch as the
script has it, as the plan has it, and as the script has it with its numbers moved as far as the
plan's format rounds: each from the same weights, buffers and random numbers. The gradients are
those of the loss that the model returns. Where it returns no loss, they are those of a sum of its
outputs with random weights, the same for all.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.command.order import Order
from autotune.trials.command.root import Root
from autotune.trials.command.samples import plain
from autotune.trials.command.training import Training
from autotune.trials.numerics.check import UNIT_ROUNDOFF, widest_class
from autotune.trials.numerics.gaps import StepGaps, norms, worst_gaps
from autotune.trials.numerics.judge import Yardstick, is_lost_in_rounding, judged
from autotune.trials.numerics.rounding import rounded_layers, scattered
from autotune.trials.numerics.state import CannotCompareError, buffers_of, parameters_of
from autotune.trials.numerics.training import generator_states
from autotune.trials.numerics_report import NumericsReport, Part
from autotune.trials.process_group import ALONE
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.result import Outcome, Phase, TrialResult

_JUDGED = (Part.LOSS, Part.GRADIENTS)
_SEED, _OTHER_SEED = 0, 1_000_000


def comparing(training: Training, order: Order) -> Iterator[None]:
    """Compare before each of a few steps, and report."""
    began = time.perf_counter()
    training.wire.send(Phase.COMPARE)
    comparison = _Comparison(training, order.plan)
    if not training.calls_model:
        comparison.problem = "the script calls no module, so there are no passes to compare"
    training.inspect = comparison.before_call
    while len(comparison.taken) < COMPARED_STEPS and not comparison.problem:
        yield
    report = replace(comparison.report(), seconds=time.perf_counter() - began)
    training.wire.send(TrialResult(outcome=Outcome.OK, numerics=report, phase=Phase.COMPARE))
    training.wait_to_be_killed()


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass forward and back: loss, gradients by parameter, whether random numbers were drawn."""

    loss: float
    gradients: dict[str, Tensor]
    is_random: bool

    def gaps(self, expected: "_Pass") -> StepGaps:
        """Return how far it is from another."""
        rows = (
            (name, norms(self.gradients.get(name, torch.zeros_like(gradient)), gradient))
            for name, gradient in expected.gradients.items()
        )
        return StepGaps(
            loss=self.loss,
            expected_loss=expected.loss,
            gradients=worst_gaps(rows, ALONE),
            weights={},
            buffers={},
        )


class _Comparison:
    """The passes of a few steps, each three times over."""

    def __init__(self, training: Training, plan: Plan) -> None:
        self._training, self._plan = training, plan
        self._root = max(training.roots, key=lambda root: _num_parameters(root.module))
        self._format = _format(plan)
        self._steps_seen: set[int] = set()
        self.taken: list[StepGaps] = []
        self._rounded: list[StepGaps] = []
        self._in_fp32: list[StepGaps] = []
        self._redrawn: list[StepGaps] = []
        self.problem = ""

    def before_call(self, root: Root, args: Any, kwargs: Any) -> None:
        """Run the passes, the first time in a step that the root is called."""
        if root is not self._root or self._training.steps in self._steps_seen or self.problem:
            return
        self._steps_seen.add(self._training.steps)
        try:
            with _eager_random_numbers(self._plan):
                self._run(partial(root.eager, *args, **kwargs), partial(root.run, *args, **kwargs))
        except (CannotCompareError, torch.OutOfMemoryError) as error:
            self.problem = str(error).partition("\n")[0]

    def _run(self, eager: Callable[[], Any], tuned: Callable[[], Any]) -> None:
        model, device = self._root.module, self._root.device
        norms = (m for m in model.modules() if isinstance(m, nn.SyncBatchNorm))
        if self._training.world_size > 1 and next(norms, None) is not None:
            raise CannotCompareError("its batch norms wait for the other ranks")
        expected = self._pass(eager)
        if not _is_finite(expected):
            raise CannotCompareError("the script's own step does not stay finite")
        changes = self._training.changes
        changes.enter_autocast(device)
        try:
            taken = self._pass(tuned)
        finally:
            changes.leave_autocast()
        rounded = self._rounded_pass(model, eager, UNIT_ROUNDOFF[self._format])
        self._rounded.append(rounded.gaps(expected))
        if is_lost_in_rounding(self._rounded[-1:]):
            in_fp32 = self._rounded_pass(model, eager, UNIT_ROUNDOFF["fp32"])
            self._in_fp32.append(in_fp32.gaps(expected))
        if expected.is_random:
            self._redrawn.append(self._pass(eager, seed=_OTHER_SEED).gaps(expected))
        self.taken.append(taken.gaps(expected))

    def _rounded_pass(self, model: nn.Module, eager: Callable[[], Any], by: float) -> _Pass:
        device = self._root.device
        with _weights_moved(model, by), rounded_layers(model, by, device, key=by):
            return self._pass(eager)

    def _pass(self, call: Callable[[], Any], seed: int | None = None) -> _Pass:
        """Run a forward and a backward pass that leave no trace but their result.

        Args:
            call: the forward pass.
            seed: of its random numbers; None: those that the script would draw.
        """
        model, device = self._root.module, self._root.device
        trained = {n: p for n, p in parameters_of(model).items() if p.requires_grad}
        devices = [device] if device.type == "cuda" else []
        torch.clear_autocast_cache()  # casts of weights as they were before
        with torch.random.fork_rng(devices), _buffers_kept(model), torch.enable_grad():
            if seed is not None:
                torch.manual_seed(seed)
            before = generator_states(device)
            outputs = list(_differentiable(call()))
            is_random = generator_states(device) != before
            if not outputs:
                raise CannotCompareError("the model returns no tensor with gradients")
            ends = [output for output in outputs if output.dim() == 0] or outputs
            cotangents = list(_cotangents(ends))
            with torch.autocast(device.type, enabled=False):
                found = torch.autograd.grad(
                    ends, list(trained.values()), cotangents, allow_unused=True
                )
        pairs: Iterable[tuple[str, Tensor | None]] = zip(trained, found, strict=True)
        gradients = {n: g.detach().float() for n, g in pairs if g is not None}
        size = [output.detach().double().square().mean() for output in ends]
        return _Pass(float(torch.stack(size).mean().sqrt()), gradients, is_random)

    def report(self) -> NumericsReport:
        """Return what was found."""
        if self.problem:
            return NumericsReport(unchecked=self.problem)
        yardstick = Yardstick(
            numerics=widest_class(self._plan, Plan.of({})),
            rounded=self._rounded,
            in_fp32=self._in_fp32 if len(self._in_fp32) == len(self._rounded) else (),
        )
        report = self._judged(yardstick)
        if not report.passed and len(self._redrawn) == len(self.taken):
            # Attention draws its dropout in another way in each format: it is held against what
            # another draw makes of the script's own pass.
            report = self._judged(replace(yardstick, redrawn=self._redrawn))
        return report

    def _judged(self, yardstick: Yardstick) -> NumericsReport:
        found = [d for d in judged(self.taken, yardstick) if d.part in _JUDGED]
        return NumericsReport(
            reference_losses=tuple(gaps.expected_loss for gaps in self.taken),
            plan_losses=tuple(gaps.loss for gaps in self.taken),
            deviations=tuple(found),
            format=self._format,
        )


def _num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _format(plan: Plan) -> str:
    return max(str(plan.get("precision", "fp32")), "fp32", key=UNIT_ROUNDOFF.__getitem__)


def _is_finite(one: _Pass) -> bool:
    finite = all(bool(gradient.isfinite().all()) for gradient in one.gradients.values())
    return math.isfinite(one.loss) and finite


def _differentiable(output: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(plain(output)):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            yield leaf


def _cotangents(ends: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the gradient at each end: one for a loss, random ones for outputs."""
    for end in ends:
        if end.dim() == 0:
            yield torch.ones_like(end)
            continue
        generator = torch.Generator(end.device).manual_seed(_SEED)
        drawn = torch.randn(end.shape, generator=generator, device=end.device)
        yield (drawn / end.numel() ** 0.5).to(end.dtype)


@contextlib.contextmanager
def _weights_moved(model: nn.Module, by: float) -> Iterator[None]:
    change, parameters = scattered(by, "command"), parameters_of(model)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(change(name, before[name]))
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


@contextlib.contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    buffers = buffers_of(model)
    before = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(before[name])


@contextlib.contextmanager
def _eager_random_numbers(plan: Plan) -> Iterator[None]:
    """Let compiled dropout draw the numbers that eager dropout draws."""
    if not is_compiled(plan):
        yield
        return
    from torch._inductor import config  # noqa: PLC0415  seconds that eager plans need not wait

    with config.patch(fallback_random=True):
        yield
