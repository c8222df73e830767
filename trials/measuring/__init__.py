"""How fast a step is.

`meter.Meter` runs the measurement protocol; `communication` measures the share of a step in which
ranks only communicate.
"""
