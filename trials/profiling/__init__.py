"""How a diagnosis is made: from a few more steps of a measured trial.

`diagnose.diagnose` makes it. `traced` and `parts` run steps under torch's profiler, `trace` reads
its file, `breakdown` and `bound` turn that into shares of a step and what limits it. `watch`,
`habits`, `graph_breaks`, `mixing` and `stalls` find what costs speed in the user's code; `rates`
measures the device and the loader alone.
"""
