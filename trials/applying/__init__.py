"""How a plan is applied to a workload: one code path for trials and for users' own training.

`apply.build_step` makes a `step.Step` of a workload and a plan; `model` holds the order in which
the model is changed. Each family of knobs has a module of the name that it has in the search
space; some have helpers beside them:

    precision
    compiler    losses
    graphs      python_state
    batch
    loader      rank_share, fingerprint
    memory      recomputation, writes
    layout
    optimizer
    host
    ranks       replicated, fully_sharded, shared_buffers, writes
"""
