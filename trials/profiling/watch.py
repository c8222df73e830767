"""Watches one step of the user's own Python, run without the compiler, for what costs speed."""

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

from autotune.trials.applying.loader import Feed
from autotune.trials.applying.step import Step
from autotune.trials.diagnosis import Finding, FindingKind
from autotune.trials.probing.products import TENSOR_CORE_MULTIPLE, uneven_sides
from autotune.trials.profiling.habits import Habits
from autotune.trials.profiling.users_code import Sightings, at_line, plain_name, times

_ROUND_MULTIPLE = 64
_MOST_SHAPES = 5  # that are told
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
        findings: synchronisations, prints, shapes, habits.
        flops: of the model for one batch, forward and backward.
    """

    findings: tuple[Finding, ...]
    flops: float


def watch_step(step: Step, feed: Feed, folder: Path) -> Watched:
    """Train one batch without the compiler, which would hide the user's lines, and tell.

    Operators that `torch.utils.flop_counter` does not know count as no work, such as kernels
    of the user's own. On the CPU, `.cpu()`, `.numpy()` and `.tolist()` do nothing that shows.

    Args:
        step: the workload's, under any plan, on one rank.
        feed: its batches.
        folder: of the workload; lines in it are the user's.
    """
    syncs, prints, batch = Sightings(folder), Sightings(folder), step.move(feed.next())
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
    """Whether backward counts parts of forward twice; it is then taken as twice the forward."""
    return step.plan.get("activation_checkpointing", "none") != "none"


@contextlib.contextmanager
def _synchronisations(
    device: torch.device, sightings: Sightings, sides: set[int]
) -> Iterator[None]:
    """Note what waits for a GPU as torch reports it, and on a CPU what would wait for a GPU."""
    if device.type != "cuda":
        with _ClassesGiven() as host, _Operators(sides, sightings, host):
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with _Operators(sides), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _listener_to_warnings(sightings)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _listener_to_warnings(sightings: Sightings) -> Any:
    """A `showwarning` that is called at the user's line, while their frame is still there."""

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if _SYNC_WARNING in str(message):
            sightings.note(_ON_DEVICE)

    return show


class _ClassesGiven(TorchFunctionMode):
    """Knows while `one_hot` checks classes that it was told, which it does on a CPU alone."""

    is_on = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do as without us."""
        given = kwargs or {}
        num_classes = args[1] if len(args) > 1 else given.get("num_classes", -1)
        self.is_on = func is F.one_hot and num_classes >= 0
        try:
            return func(*args, **given)
        finally:
            self.is_on = False


class _Operators(TorchDispatchMode):
    """Sees each operator: those that read values go to `reads`, sides of products to `sides`.

    Args:
        sides: of the products' matrices.
        reads: None where torch itself tells what waits.
        host: what reads on a CPU alone.
    """

    def __init__(
        self,
        sides: set[int],
        reads: Sightings | None = None,
        host: _ClassesGiven | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._sides, self._reads, self._host = sides, reads, host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Look, then do as without us."""
        if self._reads is not None and func in _READS and not self._is_on_host():
            self._reads.note(_READS[func])
        if func in _PRODUCTS:
            self._sides.update(_sides(args))
        return func(*args, **(kwargs or {}))

    def _is_on_host(self) -> bool:
        """Whether a GPU would not be waited for: lengths of packed sequences are never on it."""
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
    """A stdout that notes who writes, and passes it on."""

    def __init__(self, sightings: Sightings) -> None:
        super().__init__()
        self._sightings = sightings
        self._stdout = sys.stdout

    def write(self, text: str) -> int:
        """Note the line that writes; the end of a line is part of the same print."""
        if text.strip():
            self._sightings.note("writes to stdout")
        return self._stdout.write(text)


def _syncs(sightings: Sightings) -> Iterator[Finding]:
    for (what, line), count in sightings.counts.items():
        yield at_line(
            line,
            FindingKind.HOST_SYNC,
            f"{what}, {times(count)}: on a GPU the host waits here until all that was launched "
            "has ended",
            "keep the value on the device, or read it once in many steps",
        )


def _prints(sightings: Sightings) -> Iterator[Finding]:
    for what, line in sightings.counts:
        yield at_line(
            line,
            FindingKind.PRINT,
            f"{what} in each step",
            "print outside of the step, or once in many; the compiler breaks its graph here",
        )


def uneven_weights(sides: set[int], model: nn.Module) -> tuple[Finding, ...]:
    """Return the weights' sides that tensor cores cannot read in their units, longest first.

    Those of activations alone are left out: they follow from the batch, and with sequences of any
    length they are others in each step.

    Args:
        sides: of the matrices in the step's products.
        model: whose weights are looked at.
    """
    owners: dict[int, list[str]] = {}
    for name, weight in model.named_parameters():
        for side in uneven_sides(weight) & sides:
            owners.setdefault(side, []).append(f"{plain_name(name)} {tuple(weight.shape)}")
    longest = sorted(owners, reverse=True)[:_MOST_SHAPES]
    return tuple(_shape(side, owners[side]) for side in longest)


def _shape(side: int, owners: list[str]) -> Finding:
    padded = _ROUND_MULTIPLE * math.ceil(side / _ROUND_MULTIPLE)
    return Finding(
        kind=FindingKind.SHAPE,
        what=f"{side} is no multiple of {TENSOR_CORE_MULTIPLE}, which the tensor cores of a GPU "
        f"want of each side of a matrix product: {', '.join(owners[:3])}",
        advice=f"pad it to {padded}, the next multiple of {_ROUND_MULTIPLE}",
    )
