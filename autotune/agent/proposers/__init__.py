"""The proposers of search trials, their order, and the gate that each proposal must pass."""
