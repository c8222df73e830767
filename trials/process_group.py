"""The ranks of a trial or a training: joining their process group, and gathering values.

Decisions (has the step time settled, are there enough windows) must be the same on all ranks, or
one of them waits for ever in a collective that the others never enter. So they are made from
values that all ranks have gathered, over a separate group on the CPU, which leaves NCCL's streams
alone.
"""

import atexit
import os
import statistics
import sys
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from autotune.trials.failure import RendezvousError
from autotune.trials.request import RankPlace

# A client of the store tries twice before it gives up, so each attempt gets less than half of the
# deadline.
_ATTEMPT_SHARE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank and its peers. The methods are collectives: all ranks must call them.

    Attributes:
        place: the number of this rank among the others.
        control: the group on the CPU that gathers values; None for a single rank.
    """

    place: RankPlace = field(default_factory=RankPlace)
    control: dist.ProcessGroup | None = None

    def gather(self, *values: float) -> list[tuple[float, ...]]:
        """Return every rank's `values`, by rank."""
        if self.control is None:
            return [values]
        own = torch.tensor(values, dtype=torch.float64)
        everyones = [torch.empty_like(own) for _ in range(self.place.world_size)]
        dist.all_gather(everyones, own, group=self.control)
        return [tuple(tensor.tolist()) for tensor in everyones]

    def worst(self, *values: float) -> list[float]:
        """Return for each value the largest over the ranks."""
        return [max(column) for column in zip(*self.gather(*values), strict=True)]

    def mean(self, *values: float) -> list[float]:
        """Return for each value the mean over the ranks."""
        return [statistics.fmean(column) for column in zip(*self.gather(*values), strict=True)]


ALONE = Ranks()
"""The single rank of a trial on one device."""


def join(place: RankPlace, device_kind: str, *, within_s: float, collectives_s: float) -> Ranks:
    """Join the default process group of the trial, with the environment variables of torchrun.

    Args:
        place: this rank's.
        device_kind: `cuda` for NCCL, `cpu` for gloo.
        within_s: gives up after this long.
        collectives_s: the timeout of collectives, in which a rank waits for the others.

    Raises:
        RendezvousError: when not all ranks came in time.
    """
    os.environ |= torchrun_environment(place)
    device = device_of(place, device_kind)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, yet not exported
            place.master_addr,
            place.master_port,
            place.world_size,
            is_master=place.rank == 0,
            timeout=timedelta(seconds=within_s * _ATTEMPT_SHARE),
        )
        dist.init_process_group(
            "nccl" if device_kind == "cuda" else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=collectives_s),
            device_id=device if device_kind == "cuda" else None,
        )
        return with_control_group(place, collectives_s)
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(
            f"rank {place.rank} of {place.world_size} did not meet the others at "
            f"{place.master_addr}:{place.master_port}: {str(error).splitlines()[0]}"
        ) from error


def with_control_group(place: RankPlace, collectives_s: float | None = None) -> Ranks:
    """Return the ranks of the default process group, with a group on the CPU for their decisions.

    Args:
        place: this rank's.
        collectives_s: the timeout of that group's collectives; default: torch's half an hour.
    """
    limit = None if collectives_s is None else timedelta(seconds=collectives_s)
    return Ranks(place=place, control=dist.new_group(backend="gloo", timeout=limit))


def torchrun_ranks(device_kind: str) -> Ranks:
    """Return the ranks of the process group; under torchrun, join one if there is none."""
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return ALONE
        if device_kind == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device_kind == "cuda" else "gloo")
        atexit.register(_end_group)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return ALONE
    return with_control_group(
        RankPlace(
            rank=rank,
            world_size=world_size,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
        )
    )


def begin_group_of_one(device_kind: str) -> None:
    """Begin a process group of this process alone, unless there is a group: FSDP needs one."""
    if dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if device_kind == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]  # documented, yet not exported
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    atexit.register(_end_group)


def _end_group() -> None:
    """End the group of this process, while Python can still wait for its threads.

    A thread of gloo that holds a tensor while the interpreter is taken down aborts the process
    (https://github.com/pytorch/pytorch/pull/179291). After an exception the other ranks may be in
    a collective, and ending the group would wait for them.
    """
    failed = hasattr(sys, "last_value")
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()


def end_process_group(ranks: Ranks) -> None:
    """End the process groups after a trial that succeeded; without a peer this would hang."""
    if ranks.control is not None:
        dist.destroy_process_group()


def torchrun_environment(place: RankPlace) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, which users' code may read."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
    }


def device_of(place: RankPlace, device_kind: str) -> torch.device:
    """Return the rank's device, and make it the process's current one."""
    if device_kind != "cuda":
        return torch.device(device_kind)
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def limit_device_memory(device: torch.device, limit_bytes: int) -> None:
    """Let this process reserve no more memory of a GPU."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
