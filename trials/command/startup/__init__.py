"""The folder that is first on PYTHONPATH of a command, for Python to import `sitecustomize`."""
