"""How a diagnosis is obtained: a few more steps of a measured trial, each watched in one way.

`diagnose` puts it together. `spans`, `trace`, `breakdown` and `bound` compute with plain values.
"""
