"""Knobs, plans, and the space of plans of a workload on a machine. Imports no torch."""
