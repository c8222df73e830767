"""The ranks of a trial: how they find each other, and what they agree on.

Decisions (is the step time settled, are there windows enough) must be the same on every rank, or
one of them waits for ever in a collective that the others never enter. They are made from values
that all ranks gathered, over a group of their own on the CPU, which leaves NCCL's streams alone.
"""

import os
import statistics
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from autotune.trials.failure import RendezvousError
from autotune.trials.request import RankPlace

# A client of the store tries twice, each time this share of the deadline, before it gives up.
_SHARE_OF_DEADLINE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank and its peers. The methods are collectives: all ranks must call them.

    Attributes:
        place: where this rank stands.
        control: the group for values that decide; None for a rank without peers.
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
"""The only rank of a trial on one device."""


def join(place: RankPlace, device_kind: str, *, within_s: float, collectives_s: float) -> Ranks:
    """Meet the other ranks, as under torchrun: its environment, and the default process group.

    Args:
        place: this rank's.
        device_kind: `cuda` for NCCL, `cpu` for gloo.
        within_s: give up after this long.
        collectives_s: how long one rank may keep the others waiting afterwards.

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
            timeout=timedelta(seconds=within_s * _SHARE_OF_DEADLINE),
        )
        dist.init_process_group(
            "nccl" if device_kind == "cuda" else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=collectives_s),
            device_id=device if device_kind == "cuda" else None,
        )
        return with_control(place, collectives_s)
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(
            f"rank {place.rank} of {place.world_size} did not meet the others at "
            f"{place.master_addr}:{place.master_port}: {str(error).splitlines()[0]}"
        ) from error


def with_control(place: RankPlace, collectives_s: float | None = None) -> Ranks:
    """Return the ranks of the default process group, with a group for their decisions.

    Args:
        place: this rank's.
        collectives_s: how long a rank may keep the others waiting; default: torch's half an hour.
    """
    limit = None if collectives_s is None else timedelta(seconds=collectives_s)
    return Ranks(place=place, control=dist.new_group(backend="gloo", timeout=limit))


def leave(ranks: Ranks) -> None:
    """End the process groups after a trial that went well; with a peer lost it would hang."""
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
