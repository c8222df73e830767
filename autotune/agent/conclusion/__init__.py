"""Confirms what the search found, checks its numerics, concludes and explains."""
