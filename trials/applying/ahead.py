"""The next batch is copied to the device while the step on the one before it computes."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader


class Copies(Protocol):
    """The queue in which batches are copied, beside the one in which steps compute."""

    def after_steps(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which copies are queued, to begin after all steps so far."""

    def hand_over(self, batches: list[Any]) -> None:
        """Let later steps wait for all copies so far, among them those of the batches."""


class CudaCopies:
    """Copies on a CUDA stream of their own.

    The rules are those of torch's notes on CUDA streams: each stream waits for what it needs of
    the other, and memory that was allocated on one is not used again while the other reads it.
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def after_steps(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which copies are queued, to begin after all steps so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def hand_over(self, batches: list[Any]) -> None:
        """Let later steps wait for all copies so far, and keep the batches' memory for them."""
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in tree_leaves(batches):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(computing)


class CopiedAhead:
    """A loader that gives batches on the device, each copied during the step before its own.

    Its other attributes are those of the loader that it reads.

    Args:
        loader: gives batches in page-locked memory.
        move: returns a batch on the device.
        copies: where that is queued.
    """

    def __init__(
        self, loader: DataLoader[Any], move: Callable[[Any], Any], copies: Copies
    ) -> None:
        self._loader = loader
        self._move = move
        self._copies = copies

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; one more is on its way to the device."""
        ahead: list[Any] = []  # the batch that was copied last; none at first
        for batch in self._loader:
            # Before the next copy is queued: a step must not wait for that one, too.
            self._copies.hand_over(ahead)
            current, ahead = ahead, [self._copied(batch)]
            yield from current
        self._copies.hand_over(ahead)
        yield from ahead

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the loader that is read."""
        return getattr(self._loader, name)

    def _copied(self, batch: Any) -> Any:
        with self._copies.after_steps():
            return self._move(batch)
