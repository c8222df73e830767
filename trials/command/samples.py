"""Counts the samples of batches."""

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

_NUM_DIMENSIONS = 2  # of which one may be the samples': texts can be tokens first


class SampleCounter:
    """Counts samples in the dimension that they lie in, which the first batch shows."""

    def __init__(self) -> None:
        self._dimension: int | None = None

    def samples_in(self, batch: Any, sizes: Collection[int], limit: int | None) -> int:
        """Return the samples of a batch: a dimension of its first tensor.

        It is the second one where that alone has one of the sizes that batches are made with, as
        in sequences of tokens by samples. A tensor that is longer than `limit` holds no sample for
        each row, as in a batch of graphs; then `limit` is returned.

        Args:
            batch: of any structure.
            sizes: that batches are made with.
            limit: the loader's batch size, or None.
        """
        shape = next(_shapes(batch), None)
        if shape is None:
            return limit or 1
        if self._dimension is None:
            self._dimension = _dimension(shape, sizes)
        found = shape[self._dimension if self._dimension < len(shape) else 0]
        return limit if limit is not None and found > limit else found


def _shapes(batch: Any) -> Iterator[tuple[int, ...]]:
    leaves = (leaf for leaf in tree_leaves(plain(batch)) if isinstance(leaf, Tensor))
    return (tuple(leaf.shape) for leaf in leaves if leaf.dim() > 0)


def _dimension(shape: tuple[int, ...], sizes: Collection[int]) -> int:
    """Return the first dimension that has one of the sizes, or 0."""
    agreeing = (place for place, size in enumerate(shape[:_NUM_DIMENSIONS]) if size in sizes)
    return next(agreeing, 0)


def plain(batch: Any) -> Any:
    """Return a batch of a library's mapping class as a dict, which torch's trees can walk."""
    if hasattr(batch, "keys") and not isinstance(batch, dict):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118  it may be no mapping
    return batch
