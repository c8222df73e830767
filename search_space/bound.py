"""What limits the speed of a training step, named alike by diagnosis and knobs."""

import enum


class Bound(enum.Enum):
    """What takes the largest part of a step.

    `data`: waiting for batches and copying them. `launches`: a device that waits for the host to
    launch operations. `arithmetic`: matrix products, convolutions, attention.
    `memory_bandwidth`: operations that move more data than they compute. `communication`: between
    ranks, as far as it does not overlap with computing. `capacity`: freeing and allocating device
    memory again, as there is too little of it.
    """

    DATA = "data"
    LAUNCHES = "launches"
    ARITHMETIC = "arithmetic"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    COMMUNICATION = "communication"
    CAPACITY = "capacity"

    @property
    def words(self) -> str:
        """The name in words, as in `memory bandwidth`."""
        return self.value.replace("_", " ")
