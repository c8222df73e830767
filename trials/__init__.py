"""What a trial is, how a plan is applied to a workload, and how it is measured.

The only package that imports torch, and only in the modules that run inside trial processes:
`result`, `request` and `interval` stay importable everywhere.
"""
