"""What a workload is, found out once before any trial, without training it.

`probe.probe` asks the questions; each module answers those about what it is named after.
"""
