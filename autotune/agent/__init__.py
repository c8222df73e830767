"""Decides what to try next, confirms the winner, explains. Imports no torch, no ray.

`session` has the use cases and `search` the loop, which asks `agenda` for the next trial and adds
its result to the `history`, of which all decisions are functions.
"""
