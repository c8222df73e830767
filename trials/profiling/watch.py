"""Runs one step without the compiler, and finds what in the user's code costs speed."""

import contextlib
import io
import math
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autotune.trials.applying.step import Step
from autotune.trials.diagnosis import Finding, FindingKind
from autotune.trials.feed import Feed
from autotune.trials.probing.products import TENSOR_CORE_MULTIPLE, uneven_sides
from autotune.trials.profiling.habits import Habits
from autotune.trials.profiling.users_code import EventCounter, at_line, plain_name, times

_ROUND_MULTIPLE = 64
_MAX_SHAPES = 5  # that become findings
_aten = torch.ops.aten
_READS = {
    _aten._local_scalar_dense.default: ".item(), float(), bool() or int() of a tensor",  # noqa: SLF001
    _aten.nonzero.default: "nonzero()",
    _aten.masked_select.default: "masked_select()",
    _aten._unique2.default: "unique()",  # noqa: SLF001
    _aten.equal.default: "torch.equal()",
}
_PRODUCTS = {
    getattr(_aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")
}
_SYNC_WARNING = "called a synchronizing CUDA operation"
_ON_DEVICE = "an operation that waits for the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What one step showed.

    Attributes:
        findings: synchronisations, prints, uneven shapes, and those of `habits`.
        flops: of the model for one batch, forward and backward.
    """

    findings: tuple[Finding, ...]
    flops: float


def watch_step(step: Step, feed: Feed, folder: Path) -> Watched:
    """Train on one batch without the compiler, which would hide the user's lines.

    Operators that `torch.utils.flop_counter` does not know, such as the user's own kernels, count
    no FLOPs. On the CPU, `.cpu()`, `.numpy()` and `.tolist()` are not seen.

    Args:
        step: the workload's, under any plan, on one rank.
        feed: its batches.
        folder: of the workload; lines in it are the user's.
    """
    syncs, prints, batch = EventCounter(folder), EventCounter(folder), step.move(feed.next())
    sides: set[int] = set()
    habits = Habits(step.model, folder)
    with (
        torch.compiler.set_stance("force_eager"),
        contextlib.redirect_stdout(_Listener(prints)),
        _synchronisations(step.device, syncs, sides),
        FlopCounterMode(display=False) as counter,
    ):
        with habits:
            loss = step.loss(batch)
        forward = float(counter.get_total_flops())
        step.backward(loss)
        total = float(counter.get_total_flops())
        step.update()
    return Watched(
        findings=(
            *_syncs(syncs),
            *_prints(prints),
            *uneven_weights(sides, step.model),
            *habits.findings(),
        ),
        flops=3.0 * forward if _computes_again(step) else total,
    )


def _computes_again(step: Step) -> bool:
    """Whether the backward pass recomputes parts of the forward pass, which are counted, too."""
    return step.plan.get("activation_checkpointing", "none") != "none"


@contextlib.contextmanager
def _synchronisations(
    device: torch.device, counter: EventCounter, sides: set[int]
) -> Iterator[None]:
    """Count what makes the host wait for a GPU, or on the CPU what would do so on a GPU."""
    if device.type != "cuda":
        with _OneHotCheck() as host, _Operators(sides, counter, host):
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with _Operators(sides), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _count_warnings(counter)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _count_warnings(counter: EventCounter) -> Any:
    """Return a `showwarning` that counts warnings of synchronisation at the user's line."""

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if _SYNC_WARNING in str(message):
            counter.note(_ON_DEVICE)

    return show


class _OneHotCheck(TorchFunctionMode):
    """Tells whether `one_hot` is checking its classes, which it does on the CPU only."""

    is_on = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call the function."""
        given = kwargs or {}
        num_classes = args[1] if len(args) > 1 else given.get("num_classes", -1)
        self.is_on = func is F.one_hot and num_classes >= 0
        try:
            return func(*args, **given)
        finally:
            self.is_on = False


class _Operators(TorchDispatchMode):
    """Notes the operators that read values, and the sides of matrices in products.

    Args:
        sides: to which the sides are added.
        reads: counts operators that read values; None where torch itself reports them.
        host: tells of reads that happen on the CPU only.
    """

    def __init__(
        self,
        sides: set[int],
        reads: EventCounter | None = None,
        host: _OneHotCheck | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._sides, self._reads, self._host = sides, reads, host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Note the operator, and run it."""
        if self._reads is not None and func in _READS and not self._is_on_host():
            self._reads.note(_READS[func])
        if func in _PRODUCTS:
            self._sides.update(_sides(args))
        return func(*args, **(kwargs or {}))

    def _is_on_host(self) -> bool:
        """Whether the values that are read would be on the CPU also when training on a GPU.

        So are the lengths of packed sequences.
        """
        if self._host is not None and self._host.is_on:
            return True
        frames = traceback.walk_stack(sys._getframe())  # noqa: SLF001  as `inspect` does
        return any(frame.f_code.co_filename == nn.modules.rnn.__file__ for frame, _ in frames)


def _sides(args: Sequence[Any]) -> Iterator[int]:
    """Yield the sides of a product's matrices; a convolution's are its channels."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() >= 2]
    for tensor in tensors:
        yield from (tensor.shape[1:2] if tensor.dim() >= 4 else tensor.shape[-2:])


class _Listener(io.TextIOBase):
    """A stdout that counts writes by the user's line, and passes them on."""

    def __init__(self, counter: EventCounter) -> None:
        super().__init__()
        self._counter = counter
        self._stdout = sys.stdout

    def write(self, text: str) -> int:
        """Count the write, unless it only ends the line of the same print."""
        if text.strip():
            self._counter.note("writes to stdout")
        return self._stdout.write(text)


def _syncs(counter: EventCounter) -> Iterator[Finding]:
    for (what, line), count in counter.counts.items():
        yield at_line(
            line,
            FindingKind.HOST_SYNC,
            f"{what}, {times(count)}: on a GPU the host waits here until all that was launched "
            "has ended",
            "keep the value on the device, or read it once in many steps",
        )


def _prints(counter: EventCounter) -> Iterator[Finding]:
    for what, line in counter.counts:
        yield at_line(
            line,
            FindingKind.PRINT,
            f"{what} in each step",
            "print outside of the step, or once in many; the compiler breaks its graph here",
        )


def uneven_weights(sides: set[int], model: nn.Module) -> tuple[Finding, ...]:
    """Return findings for sides of weights that tensor cores do not read well, longest first.

    Sides of activations alone are left out: they follow from the batch, and differ between steps
    where sequences do.

    Args:
        sides: of the matrices in the step's products.
        model: whose weights are looked at.
    """
    owners: dict[int, list[str]] = {}
    for name, weight in model.named_parameters():
        for side in uneven_sides(weight) & sides:
            owners.setdefault(side, []).append(f"{plain_name(name)} {tuple(weight.shape)}")
    longest = sorted(owners, reverse=True)[:_MAX_SHAPES]
    return tuple(_shape(side, owners[side]) for side in longest)


def _shape(side: int, owners: list[str]) -> Finding:
    padded = _ROUND_MULTIPLE * math.ceil(side / _ROUND_MULTIPLE)
    return Finding(
        kind=FindingKind.SHAPE,
        what=f"{side} is no multiple of {TENSOR_CORE_MULTIPLE}, which the tensor cores of a GPU "
        f"want of each side of a matrix product: {', '.join(owners[:3])}",
        advice=f"pad it to {padded}, the next multiple of {_ROUND_MULTIPLE}",
    )
