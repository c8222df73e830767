"""Lets other processes import this package, also from a checkout that is not installed."""

import os
import sysconfig
from pathlib import Path


def import_path() -> dict[str, str]:
    """Let workers import this package where it is not installed, after all that the user set."""
    here = str(Path(__file__).parents[2])
    if here in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), here])}
