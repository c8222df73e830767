"""The batch size of the baseline, checked against the dataset and GLOBAL_BATCH_SIZE."""

from autotune.errors import WorkloadError
from autotune.search_space.knobs.batch import batch_does_not_divide
from autotune.trials.workload import Workload, default_batch_size


def baseline_batch_size(
    workload: Workload, num_samples: int | None
) -> tuple[int, tuple[str, ...]]:
    """Return the batch size that the user trains with, and remarks for the user.

    Args:
        workload: sets BATCH_SIZE, or leaves it to autotune.
        num_samples: in the dataset; None: unknown.

    Raises:
        WorkloadError: when the dataset or GLOBAL_BATCH_SIZE does not allow it.
    """
    name, total = workload.path.name, workload.global_batch_size
    if num_samples == 0:
        raise WorkloadError(f"{name}: the dataset is empty: len(build_dataset()) is 0")
    size = workload.batch_size
    if size is None:
        size = default_batch_size(total, limit=num_samples or 0)
        return size, (f"{name} sets no BATCH_SIZE; the baseline uses {size}",)
    if num_samples is not None and size > num_samples:
        raise WorkloadError(
            f"{name}: the dataset has {num_samples} samples, fewer than BATCH_SIZE={size}; "
            f"use {num_samples} or less"
        )
    if total is not None and total % size:
        raise WorkloadError(f"{name}: {batch_does_not_divide('BATCH_SIZE', size, total)}")
    return size, ()
