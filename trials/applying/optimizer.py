"""The user's optimizer with the implementation and the sharding that a plan names.

Most of it cannot be changed in an optimizer that exists, so another one is built from its groups
and arguments. An optimizer that holds more than these is left as it is, and the plan refused.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.failure import InvalidPlanError, one_line
from autotune.trials.request import RankPlace
from autotune.trials.workload import Workload

# What every optimizer is given anew, and what torch notes in those with a fused implementation.
_MADE_ANEW = frozenset(
    {
        "defaults",
        "param_groups",
        "_step_supports_amp_scaling",
        "_need_device_dtype_check_for_fused",
    }
)
_MISSING = object()


def build_optimizer(
    workload: Workload, plan: Plan, model: nn.Module, place: RankPlace | None = None
) -> Optimizer:
    """Return the user's optimizer, rebuilt with the plan's implementation and sharding."""
    optimizer = workload.build_optimizer(model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise WorkloadError(
            f"{workload.path.name}: build_optimizer(params) returned a "
            f"{type(optimizer).__name__}; it must return a torch.optim.Optimizer"
        )
    _check_step(optimizer, workload)
    built = optimizer
    impl = str(plan.get("optimizer_impl", "default"))
    if impl != "default":
        built = with_implementation(built, impl)
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if plan.get("cuda_graph", "off") == "step" and on_gpu:
        built = recordable(built)
    alone = place is None or place.world_size == 1
    if not alone and plan.get("sharding", "ddp") == "zero1":
        built = _sharded(built)
    if built is not optimizer:
        _share_groups(optimizer, built)
    return built


def _check_step(optimizer: Optimizer, workload: Workload) -> None:
    # Of the class: a learning rate scheduler replaces the method by a function of its own.
    _, *given = inspect.signature(type(optimizer).step).parameters.values()
    needed = [p.name for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if needed:
        raise WorkloadError(
            f"{workload.path.name}: {type(optimizer).__name__}.step needs {needed[0]}, and trials "
            "call step() after one backward pass; use an optimizer that takes its steps so"
        )


def _share_groups(optimizer: Optimizer, built: Optimizer) -> None:
    """Let both have the same groups: code of the user's may set rates in those of its own."""
    for position, group in enumerate(optimizer.param_groups):
        group.update(built.param_groups[position])
        built.param_groups[position] = group


def with_implementation(optimizer: Optimizer, impl: str) -> Optimizer:
    """Return an optimizer of the same class and arguments, with `foreach` or `fused` set.

    Raises:
        InvalidPlanError: when its constructor does not take the flag or refuses it, or something
            would be lost.
    """
    flags = _flags(optimizer)
    if impl not in flags:
        raise InvalidPlanError(f"{type(optimizer).__name__} does not take {impl}=True")
    return _rebuilt(optimizer, {flag: flag == impl for flag in flags})


def recordable(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer of the same class and arguments that a CUDA graph can hold.

    Raises:
        InvalidPlanError: when its constructor does not take `capturable`, and it is no fused SGD;
            or something would be lost.
    """
    if "capturable" in _accepted(optimizer):
        return _rebuilt(optimizer, {"capturable": True})
    if optimizer.defaults.get("fused") and _is_sgd(optimizer):
        return optimizer
    raise InvalidPlanError(f"{type(optimizer).__name__} does not take capturable=True")


def recordable_only_fused(optimizer: Optimizer) -> bool:
    """Whether a CUDA graph can hold its fused implementation, and no other.

    SGD keeps nothing on the host but its rate, which its fused kernel reads from the device.
    """
    if not _is_sgd(optimizer):
        return False
    return takes(lambda: recordable(with_implementation(optimizer, "fused")))


def _is_sgd(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and not has_own_step(optimizer)


def takes(build: Callable[[], Optimizer]) -> bool:
    """Whether an optimizer can be built so; some refuse a device or a data type."""
    try:
        build()
    except InvalidPlanError:
        return False
    return True


def steps_with(optimizer: Optimizer, impl: str, model: nn.Module, *, varies: bool = False) -> bool:
    """Whether an implementation takes steps with such gradients; some refuse only then.

    Tried on a few elements of each data type; with `varies`, the first gradient comes in the
    second step only. Where the optimizer's own implementation takes no such step either, nothing
    is known.
    """
    own = dict.fromkeys(_flags(optimizer), False)
    with_it = _steps(optimizer, {**own, impl: True}, model, varies=varies)
    return with_it or not _steps(optimizer, {}, model, varies=varies)


def _steps(
    optimizer: Optimizer, flags: dict[str, bool], model: nn.Module, *, varies: bool
) -> bool:
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    tried = [nn.Parameter(torch.zeros(2, 2, dtype=kind)) for kind in kinds for _ in range(2)]
    for parameter in tried:
        parameter.grad = torch.zeros_like(parameter)
    if gives_sparse_gradients(model):
        tried[0].grad = torch.zeros(2, 2, dtype=tried[0].dtype).to_sparse(1)
    try:
        built = type(optimizer)(tried, **(_arguments(optimizer) | flags))
        if varies:
            first, tried[0].grad = tried[0].grad, None
            built.step()
            tried[0].grad = first
        built.step()
    except Exception:  # noqa: BLE001  whatever says that it does not
        return False
    return True


def gives_sparse_gradients(model: nn.Module) -> bool:
    """Whether an embedding gives gradients of the rows that it looked up alone."""
    lookups = (m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    return any(lookup.sparse for lookup in lookups)


def has_own_step(optimizer: Optimizer) -> bool:
    """Whether the step is not torch's, so that it may look at all of the gradients together."""
    return not type(optimizer).step.__module__.startswith("torch.optim.")


def rebuild_problem(optimizer: Optimizer) -> str | None:
    """Return why no other optimizer can take its place, or None."""
    try:
        _rebuilt(optimizer, {})
    except InvalidPlanError as error:
        return str(error)
    return None


def _sharded(optimizer: Optimizer) -> Optimizer:
    """Return the same optimizer with its state cut into one part per rank."""
    with warnings.catch_warnings():
        # Its package still scripts functions for the JIT, which torch itself warns of.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415  for zero1 only

    if has_own_step(optimizer):
        raise InvalidPlanError(
            f"{type(optimizer).__name__} has a step of its own, which would see a part of the "
            "gradients on each rank; use sharding=ddp or fsdp_zero2"
        )
    _rebuilt(optimizer, {})  # each rank will do it, for its part
    return ZeroRedundancyOptimizer(
        optimizer.param_groups, type(optimizer), **_arguments(optimizer)
    )


def _rebuilt(optimizer: Optimizer, flags: dict[str, bool]) -> Optimizer:
    groups = [{**group, **flags} for group in optimizer.param_groups]
    try:
        rebuilt = type(optimizer)(groups, **(_arguments(optimizer) | flags))
    except Exception as error:  # a class of the user's may raise what it likes
        raise InvalidPlanError(
            f"{type(optimizer).__name__} cannot be built anew: {one_line(error)}"
        ) from error
    _check_nothing_lost(optimizer, rebuilt)
    return rebuilt


def _arguments(optimizer: Optimizer) -> dict[str, Any]:
    """Return the arguments, less the parameters, that make such an optimizer."""
    accepted = _accepted(optimizer)
    return {name: value for name, value in optimizer.defaults.items() if name in accepted}


def _flags(optimizer: Optimizer) -> tuple[str, ...]:
    return tuple(flag for flag in ("foreach", "fused") if flag in _accepted(optimizer))


def _accepted(optimizer: Optimizer) -> frozenset[str]:
    return frozenset(inspect.signature(type(optimizer).__init__).parameters)


def _check_nothing_lost(optimizer: Optimizer, rebuilt: Optimizer) -> None:
    """Check that the other optimizer has hooks, state and attributes of the user's.

    Raises:
        InvalidPlanError: naming what it has not.
    """
    for name, value in vars(optimizer).items():
        new = vars(rebuilt).get(name, _MISSING)
        if name not in _MADE_ANEW and _is_lost(value, new):
            raise InvalidPlanError(
                f"{type(optimizer).__name__} cannot be built anew with other settings: what its "
                f"{name} holds would be lost"
            )


def _is_lost(value: Any, new: Any) -> bool:
    """Whether the new value may mean something else; of hooks and state, only their number."""
    if isinstance(value, dict) and isinstance(new, dict):
        named = ((key, held) for key, held in value.items() if isinstance(key, str))
        return len(new) < len(value) or any(_is_lost(v, new.get(k, _MISSING)) for k, v in named)
    if type(value) is not type(new):
        return True
    if isinstance(value, torch.Tensor):
        return not torch.equal(value, new)
    try:
        return bool(value != new)
    except ValueError:  # an array of answers
        return True
