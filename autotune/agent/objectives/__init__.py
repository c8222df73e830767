"""What a run looks for: one module for each value of `--objective`."""
