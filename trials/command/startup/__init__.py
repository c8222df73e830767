"""The folder that stands first on PYTHONPATH of a command; Python imports `sitecustomize` of it."""
