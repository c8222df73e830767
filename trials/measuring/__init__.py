"""How fast a step is, and whether it trains like the reference.

`meter.Meter` runs the measurement protocol, `communication` measures what the ranks spend on
exchanging, `numerics.compare` checks a plan against the reference.
"""
