"""The family `loader`: the workload's loader with the workers, prefetch and pinning of a plan."""

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

from autotune.errors import WorkloadError
from autotune.search_space.knobs.loader import groups_by_length
from autotune.search_space.plan import Plan
from autotune.trials.applying.lengths import LengthOrder, lengths_of
from autotune.trials.applying.rank_share import RankSampler, RankStream, divides_itself
from autotune.trials.applying.settings import Setting
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import RankPlace
from autotune.trials.workload import DEFAULT_BATCH_SIZE, Workload

# Options that must be as the plan says, and where they are found: on the sampler of batches, or
# on the loader itself.
_BATCH_SAMPLER_OPTIONS = ("batch_size", "drop_last")
_LOADER_OPTIONS = ("num_workers", "pin_memory", "prefetch_factor")


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


def build_loader(
    workload: Workload, plan: Plan, seed: int, ranks: Ranks = ALONE
) -> DataLoader[Any]:
    """Return the loader of one rank's share of the workload's dataset under `plan`.

    Incomplete batches are dropped, so that each batch holds `batch_size` samples. The batches of
    all ranks together are those of one device with a batch of `batch_size` times their number.
    All ranks must call it.

    Raises:
        WorkloadError: for an empty dataset, one smaller than the batch, or a `build_dataloader`
            that ignores the options it is given.
    """
    dataset, place = workload.build_dataset(), ranks.place
    num_samples = dataset_len(dataset)
    batch_size = int(plan.get("batch_size", DEFAULT_BATCH_SIZE))
    if num_samples is not None:
        _check_size(workload, num_samples, batch_size, place.world_size)
    workers = int(plan.get("workers", 0))
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "pin_memory": bool(plan.get("pin_memory", False)),
        "drop_last": True,
        "collate_fn": workload.collate_fn,
        "sampler": _sampler(dataset, plan, seed, batch_size, place),
    }
    if workers:
        options |= {"prefetch_factor": int(plan.get("prefetch", 2)), "persistent_workers": True}
    if (
        place.world_size > 1
        and isinstance(dataset, IterableDataset)
        and not divides_itself(dataset, ranks)
    ):
        dataset = RankStream(dataset, batch_size, place)
    if workload.build_dataloader is None:
        return DataLoader(dataset, **options)
    return _checked(workload.build_dataloader(dataset, **options), workload, options)


def dataset_len(dataset: Any) -> int | None:
    """Return the number of samples, None for an iterable dataset."""
    return None if isinstance(dataset, IterableDataset) else len(dataset)


def copies_ahead(plan: Plan, device: torch.device) -> bool:
    """Whether the next batch is copied to a GPU while the step computes."""
    is_wanted = plan.get("copy_ahead", "off") == "stream" and is_non_blocking(plan)
    return is_wanted and device.type == "cuda"


def is_non_blocking(plan: Plan) -> bool:
    """Whether batches are in page-locked memory, from which copies need not be waited for."""
    return bool(plan.get("pin_memory", False))


def _sampler(
    dataset: Any, plan: Plan, seed: int, batch_size: int, place: RankPlace
) -> Sampler[int] | None:
    if isinstance(dataset, IterableDataset):
        return None
    shuffled = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    order: RandomSampler | LengthOrder = shuffled
    if groups_by_length(plan):
        order = LengthOrder(shuffled, lengths_of(dataset), batch_size * place.world_size)
    return order if place.world_size == 1 else RankSampler(order, batch_size, place)


def _check_size(workload: Workload, num_samples: int, batch_size: int, num_ranks: int) -> None:
    name, needed = workload.path.name, batch_size * num_ranks
    if num_samples == 0:
        raise WorkloadError(f"{name}: the dataset is empty: len(build_dataset()) is 0")
    if num_samples < needed:
        of_ranks = "" if num_ranks == 1 else f" on each of {num_ranks} ranks"
        raise WorkloadError(
            f"{name}: the dataset has {num_samples} samples, fewer than one batch of "
            f"{batch_size}{of_ranks}; set BATCH_SIZE = {num_samples // num_ranks} or less"
        )


def _checked(loader: Any, workload: Workload, options: dict[str, Any]) -> DataLoader[Any]:
    """Return the user's loader, checked to have the options that it was asked for.

    Otherwise batches would not hold the samples that throughput counts, or ranks would read the
    same ones. A loader that is no `DataLoader`, or whose dataset makes the batches, has no
    attributes to check.
    """
    if not isinstance(loader, DataLoader):
        return loader  # type: ignore[no-any-return]
    batches = loader.batch_sampler
    made = {n: getattr(batches, n) for n in _BATCH_SAMPLER_OPTIONS if hasattr(batches, n)}
    made |= {name: getattr(loader, name) for name in _LOADER_OPTIONS if name in options}
    if batches is not None and isinstance(options["sampler"], RankSampler | LengthOrder):
        made["sampler"] = getattr(batches, "sampler", loader.sampler)
    for name, value in made.items():
        if value != options[name]:
            raise WorkloadError(
                f"{workload.path.name}: build_dataloader was asked for {name}="
                f"{_in_words(options[name])} and made {_in_words(value)}; pass **kwargs on to "
                "DataLoader"
            )
    return loader


def _in_words(option: Any) -> str:
    """Return the option as text; of a sampler its class."""
    return type(option).__name__ if isinstance(option, Sampler) else str(option)
