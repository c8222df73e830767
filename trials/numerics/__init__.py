"""The numerics check: does a plan still train the same model? Single steps from the same weights.

`check` runs it; what it found is in `trials.numerics_report`, plain values that need no torch.
"""
