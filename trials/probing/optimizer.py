"""What is found out about the workload's optimizer: with which settings it can be rebuilt."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.search_space.facts import WorkloadFacts
from autotune.trials.applying.optimizer import (
    arguments,
    capturable,
    has_own_step,
    implementations,
    is_torchs_sgd,
    rebuilt,
    with_implementation,
)
from autotune.trials.failure import InvalidPlanError


def with_few_values(model: nn.Module) -> nn.Module:
    """Return a module with parameters like those of `model`, of one element each.

    An optimizer can be built for it where the model itself has no values.
    """
    few = nn.Module()
    for number, parameter in enumerate(model.parameters()):
        value = torch.zeros((1,) * parameter.dim(), dtype=parameter.dtype)
        alike = nn.Parameter(value, requires_grad=parameter.requires_grad)
        few.register_parameter(str(number), alike)
    return few


def with_optimizer_facts(
    facts: WorkloadFacts, optimizer: Optimizer, model: nn.Module
) -> WorkloadFacts:
    """Return the facts with those of the optimizer of `model`."""
    built = (n for n in ("foreach", "fused") if _works(partial(with_implementation, optimizer, n)))
    usable = tuple(n for n in built if steps_with(optimizer, n, model))
    return replace(
        facts,
        optimizer_class=type(optimizer).__name__,
        optimizer_impls=usable,
        own_impl=own_implementation(optimizer),
        recordable=_works(partial(capturable, optimizer)),
        recordable_only_fused="fused" in usable and capturable_only_fused(optimizer),
        rebuild_problem=rebuild_problem(optimizer),
        own_step=has_own_step(optimizer),
        sparse_gradients=gives_sparse_gradients(model),
    )


def own_implementation(optimizer: Optimizer) -> str | None:
    """Return which of `foreach` and `fused` the user's code sets in all groups, or None."""
    groups = optimizer.param_groups
    given = (n for n in ("fused", "foreach") if groups and all(g.get(n) for g in groups))
    return next(given, None)


def with_late_gradients(
    facts: WorkloadFacts, optimizer: Optimizer, model: nn.Module
) -> WorkloadFacts:
    """Return the facts with the implementations that allow first gradients after the first step.

    Parameters get their first gradient late where not all modules run in each step.
    """
    usable = (n for n in facts.optimizer_impls if steps_with(optimizer, n, model, late=True))
    return replace(facts, optimizer_impls=tuple(usable))


def capturable_only_fused(optimizer: Optimizer) -> bool:
    """Whether a CUDA graph can hold the step of the fused implementation, and of no other."""
    if not is_torchs_sgd(optimizer):
        return False
    return _works(lambda: capturable(with_implementation(optimizer, "fused")))


def rebuild_problem(optimizer: Optimizer) -> str | None:
    """Return why the optimizer cannot be rebuilt with other settings, or None."""
    try:
        rebuilt(optimizer, {})
    except InvalidPlanError as error:
        return str(error)
    return None


def steps_with(optimizer: Optimizer, impl: str, model: nn.Module, *, late: bool = False) -> bool:
    """Whether an implementation takes steps with gradients as the model gives them.

    Some implementations refuse sparse gradients, or data types, only in a step. So it is tried
    on a few elements of each data type. Where the optimizer's own implementation takes no such
    step either, the answer is yes, as nothing is known.

    Args:
        optimizer: of the workload.
        impl: `foreach` or `fused`.
        model: with the parameters.
        late: whether one parameter gets its first gradient in the second step.
    """
    flags = {**dict.fromkeys(implementations(optimizer), False), impl: True}
    return _steps(optimizer, flags, model, late=late) or not _steps(
        optimizer, {}, model, late=late
    )


def _steps(optimizer: Optimizer, flags: dict[str, bool], model: nn.Module, *, late: bool) -> bool:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    tried = [nn.Parameter(torch.zeros(2, 2, dtype=dtype)) for dtype in dtypes for _ in range(2)]
    for parameter in tried:
        parameter.grad = torch.zeros_like(parameter)
    if gives_sparse_gradients(model):
        tried[0].grad = torch.zeros(2, 2, dtype=tried[0].dtype).to_sparse(1)
    try:
        built = type(optimizer)(tried, **(arguments(optimizer) | flags))
        if late:
            first, tried[0].grad = tried[0].grad, None
            built.step()
            tried[0].grad = first
        built.step()
    except Exception:  # noqa: BLE001  whatever it raises, it takes no such step
        return False
    return True


def gives_sparse_gradients(model: nn.Module) -> bool:
    """Whether an embedding gives gradients for the rows that it looked up alone."""
    lookups = (m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    return any(lookup.sparse for lookup in lookups)


def _works(build: Callable[[], Optimizer]) -> bool:
    """Whether the optimizer can be built; some refuse a device or a data type."""
    try:
        build()
    except InvalidPlanError:
        return False
    return True
