"""What may vary: knobs, plans, the space of a workload on a machine. Imports no torch."""
