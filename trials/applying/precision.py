"""The family `precision`: tf32 products, autocast to 16 bits, and the gradient scaler of fp16.

Products in fp8 are in `eight_bits`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.settings import Setting, attribute_set

# What is not multiplied in fp8 is computed in bf16.
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def process_settings(plan: Plan) -> list[Setting]:
    """Return the setting that makes float32 products use tf32, where the plan asks for it."""
    return [_tf32()] if _precision(plan) == "tf32" else []


def half_dtype(plan: Plan) -> torch.dtype | None:
    """Return the 16-bit dtype that the plan computes in, or beside fp8; None for 32 bits."""
    return _HALF.get(_precision(plan))


def autocast(kind: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass.

    Args:
        kind: of the device, `cpu` or `cuda`.
        dtype: in which it computes; None: that of the model.
    """
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(kind, dtype=dtype)


def gradient_scaler(plan: Plan, kind: str) -> torch.amp.GradScaler | None:
    """Return what keeps fp16's gradients from becoming zero, None for other precisions."""
    return torch.amp.GradScaler(kind) if _precision(plan) == "fp16" else None


def _precision(plan: Plan) -> str:
    return str(plan.get("precision", "fp32"))


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        # The workload uses the settings that torch 2.9 brought, which exclude the older one.
        with attribute_set(torch.backends.cuda.matmul, "fp32_precision", value="tf32"):
            yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
