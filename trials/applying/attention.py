"""The family `attention`: which kernel torch's scaled_dot_product_attention takes first.

It is a preference: where the kernel does not take a mask, a dtype or the size of a head, torch
goes on to the next one. The preference is the process's, as no context around the user's code
would reach the backward pass, recomputed blocks and what a compiler traces later.
"""

import contextlib
import os
from collections.abc import Iterator

from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from autotune.search_space.plan import Plan
from autotune.trials.applying.settings import Setting, compiled_apart

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# The first call of attention in a process puts cuDNN's kernel before all others on some GPUs,
# whatever was preferred until then, unless this is 1 (`check_prefer_cudnn_attention` in torch's
# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
_KEEP_ORDER_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


def process_settings(plan: Plan) -> list[Setting]:
    """Return the settings that prefer the plan's attention kernel, where it names one."""
    kernel = str(plan.get("sdpa_kernel", "default"))
    if kernel == "default":
        return []
    # A compiled graph names its kernel, also one that a script compiles by itself.
    return [_kernel_preferred(kernel), compiled_apart(f"sdpa_kernel={kernel}")]


@contextlib.contextmanager
def _kernel_preferred(kernel: str) -> Iterator[None]:
    before = os.environ.get(_KEEP_ORDER_VARIABLE)
    os.environ[_KEEP_ORDER_VARIABLE] = "1"
    others = [_KERNELS[name] for name in _enabled() if name != kernel]
    try:
        with sdpa_kernel([_KERNELS[kernel], *others], set_priority=True):
            yield
    finally:
        _restore(before)


def _enabled() -> list[str]:
    """Return the kernels that the process may take, in the order in which they are tried."""
    allowed = {
        "cudnn": cuda.cudnn_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return [name for name, is_allowed in allowed.items() if is_allowed]


def _restore(variable: str | None) -> None:
    if variable is None:
        del os.environ[_KEEP_ORDER_VARIABLE]
    else:
        os.environ[_KEEP_ORDER_VARIABLE] = variable
