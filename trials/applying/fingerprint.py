"""Numbers that tell whether two processes read the same sample."""

import io
import pickle
import zlib
from typing import Any

import torch
from torch import Tensor

UNKNOWN = -1.0
"""The fingerprint of a sample that cannot be pickled."""


class _Pickler(pickle.Pickler):
    """Pickles a tensor's values alone: how tensors are pickled depends on where they are."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        return obj.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()


def fingerprint(sample: Any) -> float:
    """Return a number for what a sample holds, the same in all processes, or `UNKNOWN`."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(sample)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return UNKNOWN
    return float(zlib.crc32(file.getvalue()))
