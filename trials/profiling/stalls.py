"""Tells why a step waits for its batches: a slow loader is one reason of several."""


def why_waiting(loader: float, step: float, *, loads_in_loop: bool) -> tuple[str, str]:
    """Return in words why a step waits for data, and what to do.

    Args:
        loader: samples per second of the loader alone.
        step: samples per second of the step if it never waited.
        loads_in_loop: whether batches are loaded in the training process, between steps.
    """
    if loads_in_loop:
        why = (
            f"without workers loading ({loader:.4g} samples/s by itself) and the step "
            f"({step:.4g}) take turns"
        )
        return why, "workers, which load while the step computes, or cheaper work in the dataset"
    if loader < step:
        why = (
            f"the loader alone gives {loader:.4g} samples/s, fewer than the {step:.4g} that the "
            "step could take"
        )
        return why, "more workers, or cheaper work in the dataset"
    why = (
        f"although the loader alone gives {loader:.4g} samples/s and the step could take "
        f"{step:.4g}; batches may come unevenly, or loading and the step share too few cores"
    )
    return why, "a longer queue (prefetch), or another number of workers"
