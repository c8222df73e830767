"""Decides what to try next, confirms the winner, explains. Imports no torch, no ray."""
