"""Buffers that are the same on all ranks, where a strategy does not see to that by itself."""

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.utils import _sync_params_and_buffers

from autotune.trials.applying.written import Look, look_at
from autotune.trials.process_group import Ranks

_TOGETHER_BYTES = 250 * 2**20  # how much of buffers DDP sends in one message


class AlignedBuffers:
    """Gives all ranks the first one's buffers before each forward pass, as DDP does by itself.

    Else a codebook that follows its batches would become another one on each rank. Only those are
    sent that the first step wrote to on some rank.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._places = [
            (module, name)
            for module in model.modules()
            for name, _ in module.named_buffers(recurse=False)
        ]
        self._ranks = ranks
        self._first: list[Look] | None = None
        self._written: list[tuple[nn.Module, str]] | None = None

    def align(self) -> None:
        """Call on all ranks, before they run the model."""
        if not self._places:
            return
        if self._first is None:
            self._first = list(map(look_at, self._tensors(self._places)))
            return
        if self._written is None:
            self._written = self._seen_to_change(self._first)
        if tensors := self._tensors(self._written):
            # As DDP does it: one message for many small ones.
            everyone = dist.distributed_c10d._get_default_group()  # noqa: SLF001
            _sync_params_and_buffers(everyone, tensors, _TOGETHER_BYTES, src=0)

    def _seen_to_change(self, first: list[Look]) -> list[tuple[nn.Module, str]]:
        now = map(look_at, self._tensors(self._places))
        changed = [
            float(not before.is_like(after)) for before, after in zip(first, now, strict=True)
        ]
        anywhere = self._ranks.worst(*changed)
        return [place for place, is_so in zip(self._places, anywhere, strict=True) if is_so]

    @staticmethod
    def _tensors(places: list[tuple[nn.Module, str]]) -> list[Tensor]:
        return [module.get_buffer(name) for module, name in places]
