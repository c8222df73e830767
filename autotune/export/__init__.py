"""Reads and writes plan files."""
