"""Makes this package importable in other processes, also from a checkout without installation."""

import os
import sysconfig
from pathlib import Path


def import_path() -> dict[str, str]:
    """Return PYTHONPATH with this package's folder at its end; nothing where it is installed."""
    here = str(Path(__file__).parents[2])
    if here in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), here])}
