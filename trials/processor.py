"""The processor's name."""

import platform
import re
from pathlib import Path


def processor_name() -> str:
    """Return the processor's name from `/proc/cpuinfo`, or its architecture."""
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()
