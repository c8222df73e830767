"""How a plan is applied to a workload: one code path for trials and for users' own training."""
