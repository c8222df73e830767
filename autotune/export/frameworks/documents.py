"""Renders keys as YAML and JSON."""

import json

import yaml

from autotune.export.frameworks.framework import Keys
from autotune.export.frameworks.training import Training


def as_yaml(keys: Keys, training: Training) -> str:
    """Return the keys as YAML, in their order."""
    return yaml.safe_dump(dict(keys), sort_keys=False, allow_unicode=True, width=99)


def as_json(keys: Keys, training: Training) -> str:
    """Return the keys as JSON, in their order."""
    return json.dumps(keys, indent=2, allow_nan=False) + "\n"
