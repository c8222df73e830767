"""Texts and JSON documents of runs and trials, for the terminal and the dashboard."""
