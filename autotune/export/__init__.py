"""Plans as files."""
