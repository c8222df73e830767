"""The objectives of a run: one module for each value of `--objective`."""
