"""The family `optimizer`: the user's optimizer, rebuilt with the implementation of a plan.

Most settings cannot be changed in an optimizer that exists, so another one is built from its
groups and arguments. Where that would lose something else that the optimizer holds, the plan is
refused.
"""

import inspect
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.applying.checkpoints import keep_implementation
from autotune.trials.applying.settings import Setting
from autotune.trials.failure import InvalidPlanError, one_line
from autotune.trials.request import RankPlace
from autotune.trials.workload import Workload

# Attributes that each optimizer makes by itself; the last two are of fused implementations.
_OWN_ATTRIBUTES = frozenset(
    {
        "defaults",
        "param_groups",
        "_step_supports_amp_scaling",
        "_need_device_dtype_check_for_fused",
    }
)
_MISSING = object()


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


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
        built = capturable(built)
    alone = place is None or place.world_size == 1
    if not alone and plan.get("sharding", "ddp") == "zero1":
        built = _with_sharded_state(built)
    if built is not optimizer:
        _share_groups(optimizer, built)
    if "optimizer_impl" in plan or built is not optimizer:
        keep_implementation(built)
    return built


def with_plans_implementation(optimizer: Optimizer, plan: Plan) -> Optimizer:
    """Return an optimizer of one's own with the plan's implementation.

    Both have the same groups, so that schedulers made before set the rates of both.
    """
    impl = str(plan.get("optimizer_impl", "default"))
    if impl == "default":
        return optimizer
    built = with_implementation(optimizer, impl)
    _share_groups(optimizer, built)
    keep_implementation(built)
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
    """Let both have the same groups: the user's code may set learning rates in its optimizer."""
    for position, group in enumerate(optimizer.param_groups):
        group.update(built.param_groups[position])
        built.param_groups[position] = group


def with_implementation(optimizer: Optimizer, impl: str) -> Optimizer:
    """Return an optimizer of the same class and arguments, with `foreach` or `fused` set.

    Raises:
        InvalidPlanError: when its constructor does not take the flag or refuses it, or rebuilding
            the optimizer would lose something.
    """
    flags = implementations(optimizer)
    if impl not in flags:
        raise InvalidPlanError(f"{type(optimizer).__name__} does not take {impl}=True")
    return rebuilt(optimizer, {flag: flag == impl for flag in flags})


def capturable(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer of the same class and arguments whose step a CUDA graph can hold.

    Fused SGD is one as it is: it keeps nothing on the host but its learning rate, which its kernel
    reads from the device.

    Raises:
        InvalidPlanError: when its constructor does not take `capturable`, and it is no fused SGD;
            or rebuilding it would lose something.
    """
    if "capturable" in _parameter_names(optimizer):
        return rebuilt(optimizer, {"capturable": True})
    if optimizer.defaults.get("fused") and is_torchs_sgd(optimizer):
        return optimizer
    raise InvalidPlanError(f"{type(optimizer).__name__} does not take capturable=True")


def is_torchs_sgd(optimizer: Optimizer) -> bool:
    """Whether it is an SGD that takes torch's own steps."""
    return isinstance(optimizer, torch.optim.SGD) and not has_own_step(optimizer)


def has_own_step(optimizer: Optimizer) -> bool:
    """Whether the class defines its own step, which may use all gradients together."""
    return not type(optimizer).step.__module__.startswith("torch.optim.")


def _with_sharded_state(optimizer: Optimizer) -> Optimizer:
    """Return the same optimizer with its state cut into one part per rank (ZeRO stage 1)."""
    with warnings.catch_warnings():
        # Its package still scripts functions for the JIT, which torch itself warns of.
        warnings.simplefilter("ignore", DeprecationWarning)
        from autotune.trials.applying import sharded_optimizer  # noqa: PLC0415  for zero1 only

    if has_own_step(optimizer):
        raise InvalidPlanError(
            f"{type(optimizer).__name__} has a step of its own, which would see a part of the "
            "gradients on each rank; use sharding=ddp or fsdp_zero2"
        )
    rebuilt(optimizer, {})  # to raise here: each rank will rebuild it, for its part
    return sharded_optimizer.ShardedOptimizer(
        optimizer.param_groups, type(optimizer), **arguments(optimizer)
    )


def rebuilt(optimizer: Optimizer, flags: dict[str, bool]) -> Optimizer:
    """Return a new optimizer of the same class, groups and arguments, with `flags` set.

    Raises:
        InvalidPlanError: when its constructor refuses that, or something would be lost.
    """
    groups = [{**group, **flags} for group in optimizer.param_groups]
    try:
        new = type(optimizer)(groups, **(arguments(optimizer) | flags))
    except Exception as error:  # a class of the user's may raise what it likes
        raise InvalidPlanError(
            f"{type(optimizer).__name__} cannot be built anew: {one_line(error)}"
        ) from error
    _check_nothing_lost(optimizer, new)
    return new


def arguments(optimizer: Optimizer) -> dict[str, Any]:
    """Return the arguments, without the parameters, that make such an optimizer."""
    names = _parameter_names(optimizer)
    return {name: value for name, value in optimizer.defaults.items() if name in names}


def implementations(optimizer: Optimizer) -> tuple[str, ...]:
    """Return which of the flags `foreach` and `fused` the optimizer's constructor has."""
    return tuple(flag for flag in ("foreach", "fused") if flag in _parameter_names(optimizer))


def _parameter_names(optimizer: Optimizer) -> frozenset[str]:
    return frozenset(inspect.signature(type(optimizer).__init__).parameters)


def _check_nothing_lost(optimizer: Optimizer, new: Optimizer) -> None:
    """Check that the new optimizer has the hooks, state and attributes of the user's.

    Raises:
        InvalidPlanError: naming an attribute that it lacks.
    """
    for name, value in vars(optimizer).items():
        if name not in _OWN_ATTRIBUTES and _is_lost(value, vars(new).get(name, _MISSING)):
            raise InvalidPlanError(
                f"{type(optimizer).__name__} cannot be built anew with other settings: what its "
                f"{name} holds would be lost"
            )


def _is_lost(value: Any, new: Any) -> bool:
    """Whether the new value may differ. Hooks and state are compared by their number."""
    if isinstance(value, dict) and isinstance(new, dict):
        named = ((key, held) for key, held in value.items() if isinstance(key, str))
        return len(new) < len(value) or any(_is_lost(v, new.get(k, _MISSING)) for k, v in named)
    if type(value) is not type(new):
        return True
    if isinstance(value, torch.Tensor):
        return not torch.equal(value, new)
    try:
        return bool(value != new)
    except ValueError:  # an array compares element by element
        return True
