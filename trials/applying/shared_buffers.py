"""Buffers that are the same on all ranks; FSDP, unlike DDP, does not see to that by itself."""

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.utils import _sync_params_and_buffers

from autotune.trials.applying.writes import TensorVersion, version_of
from autotune.trials.process_group import Ranks

_MESSAGE_BYTES = 250 * 2**20  # of buffers that DDP sends in one message


class SharedBuffers:
    """Gives all ranks the buffers of rank 0 before each forward pass, as DDP does.

    Otherwise a codebook that follows its batches would become another one on each rank. Only the
    buffers that the first step wrote to on some rank are sent.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._owners = [
            (module, name)
            for module in model.modules()
            for name, _ in module.named_buffers(recurse=False)
        ]
        self._ranks = ranks
        self._before: list[TensorVersion] | None = None
        self._written: list[tuple[nn.Module, str]] | None = None

    def share(self) -> None:
        """Send the buffers; all ranks must call it before they run the model."""
        if not self._owners:
            return
        if self._before is None:
            self._before = list(map(version_of, self._tensors(self._owners)))
            return
        if self._written is None:
            self._written = self._written_since(self._before)
        if tensors := self._tensors(self._written):
            # As DDP does it: one message for many small ones.
            everyone = dist.distributed_c10d._get_default_group()  # noqa: SLF001
            _sync_params_and_buffers(everyone, tensors, _MESSAGE_BYTES, src=0)

    def _written_since(self, before: list[TensorVersion]) -> list[tuple[nn.Module, str]]:
        """Return the buffers that some rank wrote to, the same on all ranks."""
        now = map(version_of, self._tensors(self._owners))
        written = [float(not old.is_same(new)) for old, new in zip(before, now, strict=True)]
        anywhere = self._ranks.worst(*written)
        return [owner for owner, is_so in zip(self._owners, anywhere, strict=True) if is_so]

    @staticmethod
    def _tensors(owners: list[tuple[nn.Module, str]]) -> list[Tensor]:
        return [module.get_buffer(name) for module, name in owners]
