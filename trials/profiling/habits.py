"""Finds what performance guides warn of in the functions of torch that a forward pass calls.

Attention that writes its scores to memory, biases that a batch norm takes away again, and what is
for debugging or for another time and was left in.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]  # left out there
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from autotune.trials.diagnosis import Finding, FindingKind
from autotune.trials.profiling.users_code import Sightings, at_line, plain_name, times

_SHORT = 64  # tokens; the scores of fewer cost little
_MOST_NAMES = 3  # of biases that are told
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "einsum"})
_BIASED = frozenset({"linear", "conv1d", "conv2d", "conv3d"})
_MIB = 2**20
_ONE_KERNEL = "F.scaled_dot_product_attention computes the same in one kernel that keeps no scores"


class Habits(TorchFunctionMode):
    """Looks at each call while it is entered.

    Args:
        model: that is called.
        folder: of the workload; lines in it are the user's.
    """

    def __init__(self, model: nn.Module, folder: Path) -> None:
        super().__init__()
        self._model = model
        self._own_scores, self._modules_scores = Sightings(folder), Sightings(folder)
        # Weak, so that nothing lives longer than without us.
        self._scores, self._sums = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._in_vain: set[int] = set()  # ids of biases
        self._checks_gradients = self._is_profiled = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do as without us, and look."""
        result = func(*args, **(kwargs or {}))
        self._checks_gradients |= torch.is_anomaly_enabled()
        self._is_profiled |= _profiler_enabled()
        if func is F.multi_head_attention_forward:
            self._look_at_module(_arguments(func, args, kwargs))
        elif isinstance(result, Tensor):
            self._look_at_scores(_name(func), args, result)
            self._look_at_bias(_name(func), args, kwargs or {}, result)
        return result

    def findings(self) -> Iterator[Finding]:
        """Yield what was found so far."""
        for (scores, line), count in self._own_scores.counts.items():
            what = f"attention writes its scores to memory, {scores}, {times(count)}"
            advice = f"{_ONE_KERNEL}; masks and biases go in as attn_mask"
            yield at_line(line, FindingKind.ATTENTION, what, advice)
        for (scores, line), count in self._modules_scores.counts.items():
            what = f"nn.MultiheadAttention returns its weights, {scores}, {times(count)}"
            advice = f"call it with need_weights=False where they are not used: {_ONE_KERNEL}"
            yield at_line(line, FindingKind.ATTENTION, what, advice)
        for what, advice in self._elsewhere():
            yield Finding(kind=FindingKind.ANTI_PATTERN, what=what, advice=advice)

    def _elsewhere(self) -> Iterator[tuple[str, str]]:
        """Yield what is found in no line of its own, and what to do about it."""
        parameters = self._model.named_parameters()
        names = [plain_name(name) for name, p in parameters if id(p) in self._in_vain]
        if names:
            shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
            yield (
                f"a batch norm takes away again what the layer before it adds as a bias: {shown}",
                "build such layers with bias=False: the same model with less work",
            )
        if self._checks_gradients:
            yield (
                "anomaly detection is on: each gradient is searched for NaN",
                "remove set_detect_anomaly or detect_anomaly once the fault is found",
            )
        if self._is_profiled:
            yield (
                "a profiler is on in each step: each operation is noted",
                "profile a few steps, not the training",
            )
        if any(isinstance(module, nn.DataParallel) for module in self._model.modules()):
            yield (
                "nn.DataParallel copies the model to all devices in each step, from one process",
                "return the model itself; several devices train it with --gpus-per-trial",
            )

    def _look_at_scores(self, name: str, args: Sequence[Any], result: Tensor) -> None:
        """Follow the result of a softmax until it is multiplied with the values."""
        if name == "softmax":
            may_be = result.dim() >= 3 and not result.is_nested
            if may_be and min(result.shape[-2:]) >= _SHORT:
                self._scores[result] = _size(result.shape, result.element_size())
            return
        operands = list(_tensors(args))
        scores = next((each for each in operands if each in self._scores), None)
        if scores is None:
            return
        if name not in _PRODUCTS:
            # Dropout, another precision, heads beside samples.
            if (result.numel(), result.shape[-2:]) == (scores.numel(), scores.shape[-2:]):
                self._scores[result] = self._scores[scores]
        elif all(each.dim() >= 3 for each in operands):
            self._own_scores.note(self._scores[scores])

    def _look_at_module(self, given: dict[str, Any]) -> None:
        query, key = given["query"], given["key"]
        tokens, others = len(query), len(key)
        if given.get("need_weights", True) and min(tokens, others) >= _SHORT:
            batch = query.shape[1] if query.dim() == 3 else 1
            shape = batch, given["num_heads"], tokens, others
            self._modules_scores.note(_size(shape, query.element_size()))

    def _look_at_bias(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """Follow a sum with a bias to a batch norm that gets it as it is."""
        if name in _BIASED and result.requires_grad:
            bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
            if bias is not None:
                self._sums[result] = result._version, id(bias)  # noqa: SLF001  changed in place?
        elif name == "batch_norm" and kwargs.get("training") and args[0] in self._sums:
            version, bias_id = self._sums[args[0]]
            if version == args[0]._version:  # noqa: SLF001
                self._in_vain.add(bias_id)


def _arguments(func: Any, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    return dict(inspect.signature(func).bind(*args, **(kwargs or {})).arguments)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", ""))


def _tensors(args: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments, also those in a list, as einsum's."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (each for each in arg if isinstance(each, Tensor))


def _size(shape: Sequence[int], element_size: int) -> str:
    mib = math.prod(shape) * element_size / _MIB
    return f"{' x '.join(map(str, shape))} ({mib:,.4g} MiB)"
