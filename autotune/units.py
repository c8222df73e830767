"""Sizes in the words that people read."""

MIB = 2**20
GIB = 2**30


def size_in_words(num_bytes: float) -> str:
    """Return a size as people read it: `1.25 GiB`, `512 MiB`, `340 KiB`."""
    if num_bytes >= GIB:
        return f"{gib(num_bytes)} GiB"
    return f"{num_bytes / MIB:.0f} MiB" if num_bytes >= MIB else f"{num_bytes / 2**10:.0f} KiB"


def gib(num_bytes: float) -> str:
    """Return the number of GiB with two decimals, for a column whose heading names the unit."""
    return f"{num_bytes / GIB:.2f}"
