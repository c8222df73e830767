"""What a workload is, found out once before any trial, without training it."""
