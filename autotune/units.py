"""Sizes in the words that people read."""

GIB = 2**30


def size_in_words(num_bytes: float) -> str:
    """Return a size as people read it: `1.25 GiB`, and below one GiB `512 MiB`."""
    return f"{gib(num_bytes)} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"


def gib(num_bytes: float) -> str:
    """Return the number of GiB with two decimals, for a column whose heading names the unit."""
    return f"{num_bytes / GIB:.2f}"
