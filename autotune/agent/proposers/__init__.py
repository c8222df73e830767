"""Who proposes plans, in which order, and what keeps a proposal from being run."""
