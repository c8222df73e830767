"""What this device and this loader reach by themselves, measured for a moment."""

import time

import torch

from autotune.trials.applying.loader import Feed

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# Large enough that reading the operands hides behind the products.
_SIZE = {"cuda": 8192, "cpu": 1024}
_MATMUL_S = 0.1
_MOST_PRODUCTS = 50
_LOADER_S = 0.2


def matmul_flops_per_s(device: torch.device, precision: str) -> float:
    """Return the rate of a large square matrix product: the best of those within 0.1 s.

    The process keeps the plan's settings, so that float32 products use tf32 where it does.

    Raises:
        ValueError: for a precision that plain matrices do not have.
    """
    if precision not in _DTYPES:
        raise ValueError(f"no matrix product was measured in {precision}")
    size = _SIZE[device.type]
    left = torch.randn(size, size, device=device).to(_DTYPES[precision])
    right, out = torch.randn_like(left), torch.empty_like(left)
    _matmul_s(left, right, out)
    best = best_s = _matmul_s(left, right, out)
    for _ in range(min(_MOST_PRODUCTS, int(_MATMUL_S / best_s))):
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
    """Return the speed of the loader with nothing else going on, its queue emptied before."""
    alone_s = feed.drain()
    if alone_s is not None:
        return batch_size / alone_s
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < _LOADER_S:
        feed.next()
        batches += 1
    return batches * batch_size / (time.perf_counter() - start)
