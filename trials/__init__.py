"""Trials: what is asked of one, what it gives, and what happens in its process.

    rank         runs one rank of a trial, from the request to the result
    applying     applies a plan to a workload, also in users' own training
    measuring    measures a step
    numerics     checks that a plan trains like the reference
    probing      finds out what a workload is, before any trial
    profiling    finds out what limits a step, after it was measured

Beside these rooms is what they share: the workload contract, the process group, the feed of
batches, failures. The only package that imports torch; `request`, `result`, `cause`, `diagnosis`,
`numerics_report`, `quality`, `interval`, `merge`, `peers`, `processor` and `forkable` do not, and
are importable everywhere.
"""
