"""Compiles a cross-entropy over many classes, wherever a step computes it.

The loss often lies outside of what a plan compiles: in `compute_loss`, or beside compiled blocks.
Eagerly it is several kernels, each of which reads and writes all the logits, and those of a
vocabulary of 50257 are the largest tensors of the step. Compiled, the logits are read twice, and
neither their fp32 copy nor their log-softmax is ever stored. torchtitan compiles its loss for the
same reason.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MANY_LOGITS = 2**24
"""Below, the eager loss takes less than compiling another one is worth."""


@contextlib.contextmanager
def compiled_large_losses() -> Iterator[None]:
    """Let `F.cross_entropy`, and so `nn.CrossEntropyLoss`, be compiled for many logits."""
    eager = F.cross_entropy

    def call(*args: Any, **kwargs: Any) -> Tensor:
        return eager(*args, **kwargs)

    compiled = torch.compile(call)  # a frame of ours: Dynamo skips those of torch's own files

    @functools.wraps(eager)
    def cross_entropy(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002  torch's
        # The compiler calls the same name with tensors of its own, which only tell shapes.
        large = type(input) is Tensor and input.numel() >= MANY_LOGITS
        return (compiled if large else eager)(input, *args, **kwargs)

    F.cross_entropy = cross_entropy
    try:
        yield
    finally:
        F.cross_entropy = eager
