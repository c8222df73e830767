"""What the machine allows: its compiler, and the 16-bit formats of its device."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from autotune.search_space.hardware import Hardware


def compiler_problem(hardware: Hardware) -> str | None:
    """Return why torch.compile cannot work on this machine, None when it can."""
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h is missing; install the Python headers (python3-dev)"
    compiler = os.environ.get("CXX") or "g++"
    if not (shutil.which(compiler) or shutil.which("clang++")):
        return "no C++ compiler found; install g++"
    if hardware.device_kind == "cpu":
        return None
    if hardware.capability is not None and hardware.capability < (7, 0):
        return f"Triton needs compute capability 7.0, this device has {hardware.capability}"
    if importlib.util.find_spec("triton") is None:
        return "the triton package is missing; install it as your torch build asks"
    return None


def fp8_problem() -> str | None:
    """Return why linear layers cannot multiply in fp8, whatever the device; None when they can."""
    if importlib.util.find_spec("torchao") is None:
        return "torchao is missing; pip install 'torch-autotune[fp8]'"
    return None


def has_bf16(hardware: Hardware) -> bool:
    """Whether the device computes in bf16; CPUs are taken to."""
    return hardware.capability is None or hardware.capability >= (8, 0)


def has_fp16(hardware: Hardware) -> bool:
    """Whether the device computes in fp16; CPUs are taken not to."""
    return hardware.capability is not None and hardware.capability >= (7, 0)
