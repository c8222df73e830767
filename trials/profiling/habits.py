"""Finds what performance guides warn of in the functions of torch that a forward pass calls.

These are attention that writes its scores to memory, biases that a batch norm subtracts again,
and settings for debugging that were left on.
"""

import collections
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]  # left out there
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from autotune.trials.diagnosis import Finding, FindingKind
from autotune.trials.profiling.users_code import EventCounter, at_line, plain_name, times

_MIN_TOKENS = 32  # the scores of fewer cost little
_MAX_HEAD = 256  # elements of a head; scaled_dot_product_attention has no fused kernel for more
_MAX_NAMES = 3  # of biases that are named
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
_BIASED = frozenset(
    {"linear"} | {f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3)}
)
_MIB = 2**20
_ONE_KERNEL = "F.scaled_dot_product_attention computes the same in one kernel that keeps no scores"
_BY_SETTING = '; transformers use it with attn_implementation="sdpa"'


class Habits(TorchFunctionMode):
    """Inspects each call of a function of torch while the mode is entered.

    Args:
        model: whose forward pass is called.
        folder: of the workload; lines in it are the user's.
    """

    def __init__(self, model: nn.Module, folder: Path) -> None:
        super().__init__()
        self._model = model
        self._own_scores, self._modules_scores = EventCounter(folder), EventCounter(folder)
        # Weak references, so that no tensor lives longer than otherwise.
        self._products, self._scores = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._sums = WeakIdKeyDictionary()  # with a bias, by its id
        self._calls: collections.Counter[int] = collections.Counter()  # of layers, by their bias
        self._normed: collections.Counter[int] = collections.Counter()  # those into a batch norm
        self._used: set[int] = set()  # biases whose sum goes elsewhere, too
        self._checks_gradients = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, and inspect the call."""
        result = func(*args, **(kwargs or {}))
        self._checks_gradients |= torch.is_anomaly_enabled()
        if func is F.multi_head_attention_forward:
            self._inspect_module(_arguments(func, args, kwargs))
        elif isinstance(result, Tensor | list | tuple) and not isinstance(result, torch.Size):
            call = _Call(_name(func), args, kwargs or {}, result)
            if not any(tensor.is_nested for tensor in call.tensors):
                self._inspect_scores(call)
                self._inspect_bias(call)
        return result

    def findings(self) -> Iterator[Finding]:
        """Yield what was found so far."""
        for (scores, line), count in self._own_scores.counts.items():
            what = f"attention writes its scores to memory, {scores}, {times(count)}"
            by_setting = _BY_SETTING if " in transformers/" in scores else ""
            advice = f"{_ONE_KERNEL}; masks and biases go in as attn_mask{by_setting}"
            yield at_line(line, FindingKind.ATTENTION, what, advice)
        for (scores, line), count in self._modules_scores.counts.items():
            what = f"nn.MultiheadAttention returns its weights, {scores}, {times(count)}"
            advice = f"call it with need_weights=False where they are not used: {_ONE_KERNEL}"
            yield at_line(line, FindingKind.ATTENTION, what, advice)
        for what, advice in self._without_line():
            yield Finding(kind=FindingKind.ANTI_PATTERN, what=what, advice=advice)

    def _without_line(self) -> Iterator[tuple[str, str]]:
        """Yield what has no line of its own, each with what to do about it."""
        parameters = self._model.named_parameters()
        names = [plain_name(name) for name, p in parameters if self._is_subtracted(id(p))]
        if names:
            shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
            what = "a batch norm subtracts again what the layer before it adds as a bias"
            yield (
                f"{what}, {len(names)} in all: {shown}",
                "build such layers with bias=False: the same model with less work",
            )
        if self._checks_gradients:
            yield (
                "anomaly detection is on: each operation's origin is kept for its gradient",
                "remove set_detect_anomaly or detect_anomaly once the fault is found",
            )
        if is_profiled():
            yield (
                "a profiler is on in each step: each operation is noted",
                "profile a few steps, not the training",
            )
        if any(isinstance(module, nn.DataParallel) for module in self._model.modules()):
            yield (
                "nn.DataParallel copies the model to all devices in each step, from one process",
                "return the model itself; several devices train it with --gpus-per-trial",
            )

    def _inspect_scores(self, call: "_Call") -> None:
        """Follow a batched product to a softmax, and that to its product with the values."""
        operands = [each for each in call.operands if each in self._scores]
        if call.name in _PRODUCTS and all(each.dim() >= 3 for each in call.operands):
            self._products[call.result] = None
            others = [each.shape[-1] for each in call.operands[1:]]
            if operands and others and max(others) <= _MAX_HEAD:
                self._own_scores.note(self._scores[operands[0]])
        elif call.name == "softmax":
            if call.operands[0] in self._products and call.is_over_last and call.is_long:
                self._scores[call.result] = _size(call.result.shape, call.result.element_size())
        elif isinstance(call.result, Tensor):
            # Scaled, masked, another precision, dropout, heads beside samples.
            for each in filter(call.keeps, call.operands):
                for seen in (self._products, self._scores):
                    if each in seen:
                        seen[call.result] = seen[each]

    def _inspect_module(self, given: dict[str, Any]) -> None:
        query, key = given["query"], given["key"]
        tokens, others = len(query), len(key)
        if given.get("need_weights", True) and min(tokens, others) >= _MIN_TOKENS:
            batch = query.shape[1] if query.dim() == 3 else 1
            shape = batch, given["num_heads"], tokens, others
            self._modules_scores.note(_size(shape, query.element_size()))

    def _inspect_bias(self, call: "_Call") -> None:
        """Follow a layer's output to a batch norm, and note whether anything else uses it."""
        got = [self._sums[each] for each in call.operands if each in self._sums]
        if call.name == "batch_norm" and call.kwargs.get("training"):
            self._normed.update(got)
        else:
            self._used.update(got)
        bias = call.bias if call.name in _BIASED else None
        if bias is not None and bias.requires_grad:
            self._calls[id(bias)] += 1
            # A linear layer's last side is the norm's second one where there are two.
            if call.result.dim() == 2 or call.name != "linear":
                self._sums[call.result] = id(bias)

    def _is_subtracted(self, bias_id: int) -> bool:
        calls = self._calls[bias_id]
        return 0 < calls == self._normed[bias_id] and bias_id not in self._used


class _Call:
    """A call of a function of torch, with its arguments and result."""

    def __init__(self, name: str, args: Sequence[Any], kwargs: Any, result: Any) -> None:
        self.name, self.args, self.kwargs, self.result = name, args, kwargs, result
        self.operands = [*_tensors(args), *_tensors(kwargs.values())]

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors among arguments and result."""
        return itertools.chain(self.operands, _tensors([self.result]))

    @property
    def bias(self) -> Tensor | None:
        """The bias of a layer's call, None without."""
        given = self.args[2] if len(self.args) > 2 else None
        bias: Tensor | None = self.kwargs.get("bias", given)
        return bias

    @property
    def is_over_last(self) -> bool:
        """Whether a softmax is over the last dimension."""
        dim = self.kwargs.get("dim", self.args[1] if len(self.args) > 1 else None)
        return bool(dim in (-1, self.result.dim() - 1))

    @property
    def is_long(self) -> bool:
        """Whether the result is a batch of large matrices."""
        return bool(self.result.dim() >= 3 and min(self.result.shape[-2:]) >= _MIN_TOKENS)

    def keeps(self, operand: Tensor) -> bool:
        """Whether the result may be the operand, changed element by element or reshaped."""
        mine, theirs = self.result, operand
        return bool(mine.numel() == theirs.numel() and mine.shape[-2:] == theirs.shape[-2:])


def is_profiled() -> bool:
    """Whether a profiler of torch's is on."""
    return bool(_profiler_enabled())


def _arguments(func: Any, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    return dict(inspect.signature(func).bind(*args, **(kwargs or {})).arguments)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", ""))


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments, also those in a list, as einsum's."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (each for each in arg if isinstance(each, Tensor))


def _size(shape: Sequence[int], element_size: int) -> str:
    mib = math.prod(shape) * element_size / _MIB
    return f"{' x '.join(map(str, shape))} ({mib:,.4g} MiB)"
