"""Compiles a cross-entropy over many classes, wherever the workload calls it.

The loss often lies outside of what a plan compiles: in `compute_loss`, or beside compiled blocks.
Eagerly it is several kernels, each of which reads and writes all the logits, and those of a
vocabulary of 50257 are the largest tensors of the step. Compiled, the logits are read twice, and
neither their fp32 copy nor their log-softmax is ever stored. torchtitan compiles its loss for the
same reason.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MANY_LOGITS = 2**24
"""Logits from which on a loss is compiled; that of fewer is not worth the compiler's time."""


class _Replacement:
    """Replaces `F.cross_entropy` by a compiled one, as long as any step wants it."""

    def __init__(self) -> None:
        self._users = 0
        self._eager: Callable[..., Tensor]

    def enter(self) -> None:
        """Count one more user, and replace the function for the first."""
        if not self._users:
            self._eager = F.cross_entropy
            F.cross_entropy = _compiled_for_many(self._eager)
        self._users += 1

    def leave(self) -> None:
        """Count one user less, and restore the eager function after the last."""
        self._users -= 1
        if not self._users:
            F.cross_entropy = self._eager


_replacement = _Replacement()


@contextlib.contextmanager
def compiled_large_losses() -> Iterator[None]:
    """Compile `F.cross_entropy`, and with it `nn.CrossEntropyLoss`, for many logits."""
    _replacement.enter()
    try:
        yield
    finally:
        _replacement.leave()


def _compiled_for_many(eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return eager(*args, **kwargs)

    # A function of ours, because Dynamo skips frames of torch's own files.
    compiled = torch.compile(call)

    @functools.wraps(eager)
    def cross_entropy(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002  torch's
        # The compiler itself calls this with fake tensors, which are of another type.
        large = type(input) is Tensor and input.numel() >= MANY_LOGITS
        return (compiled if large else eager)(input, *args, **kwargs)

    return cross_entropy
