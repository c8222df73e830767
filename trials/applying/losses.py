"""Compiles a cross-entropy over many classes, also outside of what a plan compiles.

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
"""Below, the eager loss takes less than compiling another one is worth."""


class _Losses:
    """The compiled loss in the eager one's place, as long as anybody uses it."""

    def __init__(self) -> None:
        self._users = 0
        self._eager: Callable[..., Tensor]

    def enter(self) -> None:
        """Put it in place for one more."""
        if not self._users:
            self._eager = F.cross_entropy
            F.cross_entropy = _compiled_for_many(self._eager)
        self._users += 1

    def leave(self) -> None:
        """Put the eager one back when nobody is left."""
        self._users -= 1
        if not self._users:
            F.cross_entropy = self._eager


_losses = _Losses()


@contextlib.contextmanager
def compiled_large_losses() -> Iterator[None]:
    """Let `F.cross_entropy`, and so `nn.CrossEntropyLoss`, be compiled for many logits."""
    _losses.enter()
    try:
        yield
    finally:
        _losses.leave()


def _compiled_for_many(eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return eager(*args, **kwargs)

    compiled = torch.compile(call)  # a frame of ours: Dynamo skips those of torch's own files

    @functools.wraps(eager)
    def cross_entropy(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002  torch's
        # The compiler calls the same name with tensors of its own, which only tell shapes.
        large = type(input) is Tensor and input.numel() >= MANY_LOGITS
        return (compiled if large else eager)(input, *args, **kwargs)

    return cross_entropy
