"""Models of which the host cannot hold one copy per rank: built without values, filled by parts.

A model that FSDP shards need never be whole anywhere. It is built on the meta device, and each
block gets memory and values just before it is cut into parts. The values come from the modules'
own `reset_parameters`, with the same seed on every rank, so that all parts are of one model.
"""

import warnings
from collections.abc import Iterator

import psutil
import torch
from torch import Tensor, nn

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.ranks import Ranks
from autotune.trials.workload import Workload

# Of the memory that is free, what copies of the model may take; the loaders need some too.
_SHARE_OF_HOST = 0.8


def build_unplaced(workload: Workload, plan: Plan, ranks: Ranks) -> nn.Module:
    """Return the model on the CPU; on the meta device if the ranks' copies would not fit there."""
    hollow = build_on_meta(workload, plan)
    copies = ranks.place.local_world_size
    crowded = hollow is not None and not copies_fit(num_bytes(hollow), copies)
    # One answer for all ranks, of which each saw the memory at another moment.
    if ranks.worst(float(crowded)) == [0.0] or hollow is None:
        torch.manual_seed(torch.initial_seed())
        return workload.model(plan.values)
    warnings.warn(
        f"{copies} copies of the model do not fit into the host's memory, so its parameters come "
        "from reset_parameters(); what build_model() does to them itself is lost. Load a "
        "checkpoint where that matters",
        stacklevel=2,
    )
    return hollow


def build_on_meta(workload: Workload, plan: Plan) -> nn.Module | None:
    """Return the model without values, or None when nothing could fill them in later."""
    try:
        with torch.device("meta"):
            model = workload.model(plan.values)
    except WorkloadError:
        raise
    except Exception:  # noqa: BLE001  whatever the user's code makes of tensors without values
        return None
    names = dict(model.named_parameters(remove_duplicate=False))
    tied = len(names) != len(set(names.values()))
    fillable = all(hasattr(module, "reset_parameters") for module in _hollow(model))
    return model if fillable and not tied else None


def materialise(module: nn.Module, device: str) -> None:
    """Give every parameter and buffer on the meta device memory on `device`, and its value."""
    for owner in list(_hollow(module)):
        owner.to_empty(device=device, recurse=False)
        owner.reset_parameters()  # type: ignore[operator]  # `build_on_meta` has seen it


def _hollow(model: nn.Module) -> Iterator[nn.Module]:
    return (m for m in model.modules() if any(tensor.is_meta for tensor in _own(m)))


def _own(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def num_bytes(model: nn.Module) -> int:
    """Return the size of the model's parameters and buffers."""
    return sum(t.numel() * t.element_size() for m in model.modules() for t in _own(m))


def copies_fit(size_bytes: int, copies: int) -> bool:
    """Whether the host has the memory for so many copies of a model."""
    return size_bytes * copies <= psutil.virtual_memory().available * _SHARE_OF_HOST
