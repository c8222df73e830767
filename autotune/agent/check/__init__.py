"""The gate: whether a revision trains more slowly, or needs more memory, than it may."""
