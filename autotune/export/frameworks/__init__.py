"""Configurations for other tools: a module for each, with the keys that say what a plan says.

To add a tool: a module here whose `FRAMEWORK` names its keys, its line in `FRAMEWORKS`, and a test
that loads what is written with the tool itself.
"""

from autotune.export.frameworks import (
    accelerate,
    deepspeed,
    environment,
    lightning,
    torchtitan,
    transformers,
)
from autotune.export.frameworks.framework import Framework

FRAMEWORKS: dict[str, Framework] = {
    module.FRAMEWORK.name: module.FRAMEWORK
    for module in (transformers, accelerate, lightning, deepspeed, torchtitan, environment)
}
"""The tools that a plan can be written for, by the name that `--for` takes."""
