"""What limits a training step: the words that diagnosis and knobs share."""

import enum


class Bound(enum.Enum):
    """What the largest part of a step is spent on, or what would have to grow for it to shrink.

    `data`: waiting for batches and copying them. `launches`: the host, which cannot start
    operations as fast as they end. `arithmetic`: matrix products, convolutions, attention.
    `memory_bandwidth`: everything that moves more than it computes. `communication`: between
    ranks, hidden behind nothing. `capacity`: device memory that had to be freed and asked for
    again.
    """

    DATA = "data"
    LAUNCHES = "launches"
    ARITHMETIC = "arithmetic"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    COMMUNICATION = "communication"
    CAPACITY = "capacity"

    @property
    def words(self) -> str:
        """The name for sentences."""
        return self.value.replace("_", " ")
