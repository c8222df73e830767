"""The command line: one thin file per command over the use cases below."""
