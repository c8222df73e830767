"""A site: the workload, the machine and the number of ranks that a space is computed for."""

from dataclasses import dataclass

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A workload on a machine, with a number of ranks for each trial.

    Attributes:
        facts: facts about the workload.
        hardware: the machine.
        num_ranks: ranks of each trial.
    """

    facts: WorkloadFacts
    hardware: Hardware
    num_ranks: int = 1

    @property
    def cores_per_rank(self) -> int:
        """Each rank's share of the cores, at least one; on a CPU ranks may share one device."""
        if self.hardware.device_kind == "cuda":
            return self.hardware.cores_per_device
        return max(1, self.hardware.num_cores // max(self.hardware.num_devices, self.num_ranks))

    @property
    def fitting_batches(self) -> tuple[int, ...]:
        """The batches that divide a rank's share of the global batch; empty without one."""
        share = (self.facts.global_batch_size or 0) // self.num_ranks
        return tuple(size for size in range(1, share + 1) if share % size == 0)

    @property
    def own_batch_size(self) -> int:
        """The user's per-device batch, or the largest smaller one that so many ranks can have."""
        own, total = self.facts.batch_size, self.facts.global_batch_size
        if total is not None:
            return max((size for size in self.fitting_batches if size <= own), default=1)
        samples = self.facts.dataset_len
        return own if samples is None else max(1, min(own, samples // self.num_ranks))


def on_ranks(num_ranks: int) -> str:
    """Return ` on each of 4 ranks`, or nothing where there is only one."""
    return "" if num_ranks == 1 else f" on each of {num_ranks} ranks"
