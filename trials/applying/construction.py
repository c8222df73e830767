"""Constructs the workload's model: on its device, on the CPU, or without values.

Drawing a billion parameters takes ten seconds on a host and hardly any time on a GPU, and every
trial does it anew. So a model is built on its device where its code lets it. A model that FSDP
shards need not be whole anywhere: where neither the device nor the host has room for it, it is
built on the meta device, and each block gets memory and values just before it is cut into parts.
The values then come from the modules' own `reset_parameters`, with the same seed on every rank,
so that all parts are of one model.
"""

import functools
import gc
import inspect
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import Ranks
from autotune.trials.seeding import seed_all
from autotune.trials.workload import Workload

# Share of the host's free memory that copies of the model may take; the loaders need some too.
_SHARE_OF_HOST = 0.8
# Share of the device's free memory that a whole model may take before it is cut into parts; the
# parts and the gathered blocks need the rest.
_SHARE_OF_DEVICE = 0.25
_UNSET = math.nan  # marks parameters to which `reset_parameters` gave no value
_CACHED_FUNCTION = type(functools.lru_cache(lambda: None))


def construct_on_device(workload: Workload, plan: Plan, device: torch.device) -> nn.Module:
    """Return the model on the device, built there if its code works with tensors there."""
    if device.type != "cpu":
        try:
            with device:
                model = _seeded(workload, plan).to(device)
        except WorkloadError:
            raise
        except Exception:  # noqa: BLE001  code that needs its tensors on the CPU, as numpy does
            model = None
        if model is not None and not _has_loose_tensors(model):
            return model
    return _seeded(workload, plan).to(device)


def _has_loose_tensors(model: nn.Module) -> bool:
    """Whether attributes hold tensors that are neither parameters nor buffers.

    `model.to(device)` leaves them where they were made, and the model's code may count on that.
    """
    of_modules = ("_parameters", "_buffers", "_modules")
    attributes = (
        held for m in model.modules() for name, held in vars(m).items() if name not in of_modules
    )
    return any(isinstance(leaf, Tensor) for held in attributes for leaf in tree_leaves(held))


def construct_for_sharding(
    workload: Workload, plan: Plan, device: torch.device, ranks: Ranks
) -> nn.Module:
    """Return a model for FSDP to cut: on the device, else on the CPU, else without values.

    It is the same on all ranks, although each sees its own free memory.
    """
    empty = construct_without_values(workload, plan)
    fits = empty is not None and device_has_room(num_bytes(empty), device)
    if ranks.worst(float(not fits)) == [0.0]:
        return construct_on_device(workload, plan, device)
    fillable = empty if empty is not None and can_be_filled(empty) else None
    copies = ranks.place.local_world_size
    is_too_large = fillable is not None and not copies_fit(num_bytes(fillable), copies)
    if ranks.worst(float(is_too_large)) == [0.0] or fillable is None:
        return _seeded(workload, plan)
    warnings.warn(
        f"{copies} copies of the model do not fit into the host's memory, so its parameters come "
        "from reset_parameters(); what build_model() does to them itself is lost. Load a "
        "checkpoint where that matters",
        stacklevel=2,
    )
    return fillable


def _seeded(workload: Workload, plan: Plan) -> nn.Module:
    seed_all(torch.initial_seed())  # an attempt before has drawn random numbers
    return workload.model(plan.values)


def construct_without_values(workload: Workload, plan: Plan) -> nn.Module | None:
    """Return the model built on the meta device, or None when its code needs values."""
    try:
        with torch.device("meta"):
            return workload.model(plan.values)
    except WorkloadError:
        raise
    except Exception:  # noqa: BLE001  whatever the user's code makes of tensors without values
        return None
    finally:
        _forget_cached(workload.path.parent)


def _forget_cached(folder: Path) -> None:
    """Clear the caches of functions in the workload's folder: they may hold empty tensors."""
    for found in gc.get_objects():
        if type(found) is _CACHED_FUNCTION:
            code = getattr(inspect.unwrap(found), "__code__", None)
            if code is not None and folder in Path(code.co_filename).parents:
                found.cache_clear()


def can_be_filled(model: nn.Module) -> bool:
    """Whether every module without values has `reset_parameters`, and no two share a parameter."""
    names = dict(model.named_parameters(remove_duplicate=False))
    tied = len(names) != len(set(names.values()))
    if tied or _has_loose_tensors(model):
        return False
    return all(hasattr(module, "reset_parameters") for module in _modules_without_values(model))


def materialise(module: nn.Module, device: str) -> None:
    """Give every parameter and buffer on the meta device memory on `device`, and a value.

    Raises:
        InvalidPlanError: naming a tensor that the module's `reset_parameters` leaves as it was.
    """
    for owner in list(_modules_without_values(module)):
        owner.to_empty(device=device, recurse=False)
        with torch.no_grad():
            for tensor in _own(owner):
                tensor.fill_(_UNSET if tensor.is_floating_point() else 0)
        owner.reset_parameters()  # type: ignore[operator]  # `can_be_filled` has seen it
        _check_filled(owner)


def _check_filled(owner: nn.Module) -> None:
    # Integers cannot be marked with NaN; only torch's own modules are known to set them.
    is_torchs = type(owner).__module__.startswith("torch.")
    for name, tensor in (
        *owner.named_parameters(recurse=False),
        *owner.named_buffers(recurse=False),
    ):
        unset = tensor.isnan().any() if tensor.is_floating_point() else not is_torchs
        if unset:
            raise InvalidPlanError(
                f"{type(owner).__name__}.reset_parameters() gives {name} no value, as far as one "
                "can tell, and the model is too large to be built whole by each rank; set it there"
            )


def _modules_without_values(model: nn.Module) -> Iterator[nn.Module]:
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


def device_has_room(size_bytes: int, device: torch.device) -> bool:
    """Whether a GPU has room for a whole model before it is cut into parts."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return size_bytes <= free * _SHARE_OF_DEVICE
