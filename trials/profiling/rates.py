"""Measures the device in a large matrix product, and the loader alone."""

import time

import torch

from autotune.trials.feed import Feed

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# The side of the matrices, large enough that arithmetic takes longer than reading them.
_SIDE = {"cuda": 8192, "cpu": 1024}
_MATMUL_S = 0.1  # for which products are repeated
_MAX_PRODUCTS = 50
_LOADER_S = 0.2  # for which a loader without workers is read


def matmul_flops_per_s(device: torch.device, precision: str) -> float:
    """Return the rate of a large square matrix product: the best of those within 0.1 s.

    Under the plan's process-wide settings, so float32 products use tf32 where the plan does.

    Raises:
        ValueError: for a precision that torch.mm does not have.
    """
    if precision not in _DTYPES:
        raise ValueError(f"no matrix product was measured in {precision}")
    size = _SIDE[device.type]
    left = torch.randn(size, size, device=device).to(_DTYPES[precision])
    right, out = torch.randn_like(left), torch.empty_like(left)
    _matmul_s(left, right, out)
    best = best_s = _matmul_s(left, right, out)
    for _ in range(min(_MAX_PRODUCTS, int(_MATMUL_S / best_s))):
        best = min(best, _matmul_s(left, right, out))
    return 2.0 * size**3 / best


def _matmul_s(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    _synchronize(left.device)
    start = time.perf_counter()
    torch.mm(left, right, out=out)
    _synchronize(left.device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def loader_samples_per_s(feed: Feed, batch_size: int) -> float:
    """Return the samples per second of the loader alone, after its queue was emptied."""
    alone_s = feed.drain()
    if alone_s is not None:
        return batch_size / alone_s
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < _LOADER_S:
        feed.next()
        batches += 1
    return batches * batch_size / (time.perf_counter() - start)
