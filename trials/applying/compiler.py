"""The family `compiler`: compiles the model, or its blocks and the modules beside them."""

import contextlib
import copy
from collections.abc import Callable, Hashable
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from torch import nn

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import block_kind, check_found, find_beside
from autotune.trials.applying.losses import compiled_large_losses
from autotune.trials.applying.memory_budget import memory_budget
from autotune.trials.applying.settings import Setting, attribute_set
from autotune.trials.failure import InvalidPlanError

# How Dynamo says that it compiled a function too often, in newer and in older versions.
_LIMIT_TEXTS = ("recompile limit exceeded", "recompile_limit reached", "cache_size_limit reached")
# The code that Dynamo compiles, by the kind of module; see `_CompiledForward`.
_codes: dict[Hashable, CodeType] = {}


def process_settings(plan: Plan) -> list[Setting]:
    """Return what the plan sets of the compiler in the whole process."""
    settings: list[Setting] = [compiled_large_losses()] if is_compiled(plan) else []
    if plan.get("shape_padding", "measured") == "always":
        settings.append(_shapes_always_padded())
    if plan.get("activation_memory_budget", 1.0) != 1.0:
        settings.append(memory_budget(float(plan["activation_memory_budget"])))
    return settings


def _shapes_always_padded() -> contextlib.AbstractContextManager[None]:
    """Let the compiler pad uneven products without timing them first.

    Its timings count copies for the padding that it would fuse with neighbouring operations.
    """
    from torch._inductor import config  # noqa: PLC0415  2 s that eager plans need not wait

    return attribute_set(config, "force_shape_pad", value=True)


def compile_blocks(model: nn.Module, blocks: list[nn.Module], plan: Plan) -> None:
    """Compile each block and the large modules beside them by themselves, if the plan says so.

    A model's head is one layer among many and may be a large part of the work. Where its shape is
    no multiple of what tensor cores read, as a vocabulary of 50257, compiled code pads it.
    """
    if plan.get("compile_scope", "model") != "block" or not is_compiled(plan):
        return
    check_found(blocks, "compile_scope=block")
    for module in dict.fromkeys((*blocks, *find_beside(model, blocks))):
        _compile_in_place(module, str(plan["compile_mode"]))


def compile_model(model: nn.Module, plan: Plan) -> None:
    """Compile the whole model if the plan says so. The compiler runs in the first step."""
    if plan.get("compile_scope", "model") == "model" and is_compiled(plan):
        _compile_in_place(model, str(plan["compile_mode"]))


def check_compiled(plan: Plan, model: nn.Module) -> None:
    """Check after a first step that a plan that compiles has compiled the model, or parts of it.

    A compiled loss alone is not enough.

    Raises:
        InvalidPlanError: when the compiler compiled nothing of the model.
    """
    if not is_compiled(plan):
        return
    from torch._dynamo.utils import counters  # noqa: PLC0415  2 s that eager plans need not wait

    forwards = (vars(module).get("forward") for module in model.modules())
    # A root of a command has the compiled forward pass inside of its own.
    compiled = (getattr(forward, "tuned", forward) for forward in forwards)
    is_used = any(isinstance(f, _CompiledForward) and f.is_used for f in compiled)
    if not is_used or not counters["stats"]["unique_graphs"]:
        raise InvalidPlanError(
            "torch.compile compiled nothing: the model's forward pass leaves it no graph to "
            "compile, or compute_loss does not call the model itself, only parts of it"
        )


def recompile_limit_hits(plan: Plan) -> int | None:
    """Return how many functions the compiler gave up on, as it had compiled them too often.

    It compiles a function anew for inputs that differ in kind from those before, by default at
    most eight times; then such inputs run eagerly. None for a plan that does not compile.
    """
    if not is_compiled(plan):
        return None
    from torch._dynamo.utils import counters  # noqa: PLC0415  2 s that eager plans need not wait

    given_up = counters["unimplemented"].items()
    return sum(number for why, number in given_up if any(words in why for words in _LIMIT_TEXTS))


def _compile_in_place(module: nn.Module, mode: str) -> None:
    """Compile the module's forward pass, also that of torch's own containers.

    Unlike with `torch.compile(module)` the names in the state dict stay, and FSDP's hooks around
    the forward pass stay outside of the graph, which they would break.
    """
    module.forward = _CompiledForward(module.forward, mode, block_kind(module))


class _CompiledForward:
    """A module's forward pass, compiled. A copy of the module gets a compiled forward of its own.

    Dynamo skips frames of torch's own files, so `nn.Sequential(...).compile()` silently compiles
    nothing; a frame of ours in between makes Dynamo trace them. Dynamo caches what it compiles by
    the frame's code object, at most eight times for one, and takes a size for dynamic that differs
    from the one before under the same file, line and name. So modules of one kind share a code
    object, and with it the compiled code, and each other kind has its own, with a name of its own.
    """

    def __init__(self, eager: Callable[..., Any], mode: str, kind: Hashable) -> None:
        self._arguments = eager, mode, kind
        self.is_used = False

        def call(*args: Any, **kwargs: Any) -> Any:
            return eager(*args, **kwargs)

        name = f"{call.__name__}_{len(_codes)}"
        code = _codes.setdefault(kind, call.__code__.replace(co_name=name))
        frame = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        self._compiled = torch.compile(frame, mode=None if mode == "default" else mode)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.is_used = True
        return self._compiled(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(*copy.deepcopy(self._arguments, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments
