"""Forecasts of a plan's speed, its memory, its success and the length of its trial."""
