"""Checks what autotune needs of a machine; each gap comes with its cost and its cure."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pynvml

from autotune.dispatch.machine import host_memory_bytes, num_cores
from autotune.storage.location import DEFAULT_FILE
from autotune.units import GIB, size_in_words

ENOUGH_SHARED_BYTES = GIB  # for the batches that loader workers hand over
ENOUGH_DISK_BYTES = 5 * GIB  # for the store, logs, and a long run's compiled kernels
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where Linux mounts it
PROBE_TIMEOUT_S = 120  # for `import torch`
# Run in a process of its own, as importing a broken torch can crash the process.
TORCH_PROBE = """
import json, torch
available = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] * available
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": names}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        found: what this machine has.
        cost: what does not work, or not well; empty when nothing is missing.
        cure: how to mend that.
    """

    name: str
    found: str
    cost: str = ""
    cure: str = ""

    @property
    def is_gap(self) -> bool:
        """Whether something is missing."""
        return bool(self.cost)


def check_machine() -> Iterator[Check]:
    """Yield a `Check` for each thing that autotune uses."""
    torch, driver = probe_torch(), probe_driver()
    yield check_python()
    yield check_torch(torch)
    yield check_devices(torch, driver)
    yield check_compiler()
    if torch.get("cuda"):
        yield check_package("triton", "torch.compile does not work on this GPU", "reinstall torch")
    yield check_package("ray", "no trial can run", "pip install ray")
    yield check_cores()
    yield Check(name="memory", found=f"{host_memory_bytes() / GIB:.0f} GiB")
    yield check_shared_memory()
    yield check_store(Path.cwd())
    yield check_disk(Path.cwd())


def check_python() -> Check:
    """Return the version and path of the Python interpreter."""
    return Check(name="python", found=f"{sys.version.split()[0]} ({sys.executable})")


def probe_torch() -> dict[str, Any]:
    """Return torch's `version`, `cuda` and `devices`, or an `error`, found in another process."""
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter and script
            [sys.executable, "-c", TORCH_PROBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"`import torch` took more than {PROBE_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def probe_driver() -> dict[str, Any]:
    """Return the NVIDIA `driver`, its newest `cuda` and its `devices`; empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "devices": [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        }
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def check_torch(torch: dict[str, Any]) -> Check:
    """Check that torch can be imported."""
    if "error" in torch:
        return Check(
            name="torch",
            found=torch["error"],
            cost="nothing can run",
            cure="install torch 2.6 or newer as its site says for this machine",
        )
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU"
    return Check(name="torch", found=f"{torch['version']}, built for {build}")


def check_devices(torch: dict[str, Any], driver: dict[str, Any]) -> Check:
    """Check that torch can use the driver's devices."""
    devices = driver.get("devices", [])
    if not devices:
        return Check(name="devices", found="no NVIDIA device; trials run on the CPU")
    found = f"{len(devices)} x {devices[0]}, driver {driver['driver']} (CUDA {driver['cuda']})"
    if torch.get("devices"):
        return Check(name="devices", found=found)
    built_for = torch.get("cuda")
    why = f"it is built for CUDA {built_for}" if built_for else "it is built for the CPU"
    return Check(
        name="devices",
        found=f"{found}, but torch cannot use them: {why}",
        cost="trials run on the CPU, the GPUs stay idle",
        cure=f"install torch built for CUDA {driver['cuda']} or older, or update the driver; "
        "see that CUDA_VISIBLE_DEVICES does not hide them",
    )


def check_compiler() -> Check:
    """Check for the C++ compiler and headers with which torch.compile builds kernels."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    cost = "compile_mode and the knobs that need it, often the largest gain, are left out"
    if compiler is None:
        return Check(
            name="compiler",
            found="no C++ compiler",
            cost=cost,
            cure="install g++ (apt-get install g++), or name yours in CXX",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return Check(
            name="compiler",
            found=f"{compiler}, but no {header}",
            cost=cost,
            cure="install Python's headers (apt-get install python3-dev)",
        )
    return Check(name="compiler", found=compiler)


def check_package(name: str, cost: str, cure: str) -> Check:
    """Check that a package is installed, without importing it."""
    if util.find_spec(name) is None:
        return Check(name=name, found="not installed", cost=cost, cure=cure)
    return Check(name=name, found=metadata.version(name))


def check_cores() -> Check:
    """Check that this process may use more than one core, by affinity and CPU quota."""
    usable, present = num_cores(), os.cpu_count() or 1
    found = f"{usable} of {present}" if usable < present else f"{usable}"
    if usable > 1:
        return Check(name="cores", found=found)
    return Check(
        name="cores",
        found=found,
        cost="loader workers and the training process share one core",
        cure="give the container more cores, for example with --cpus=8",
    )


def check_shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Check the size of the shared memory through which loader workers and Ray pass data."""
    total = shutil.disk_usage(folder).total if folder.is_dir() else 0
    found = f"{size_in_words(total)} in {folder}"
    if total >= ENOUGH_SHARED_BYTES:
        return Check(name="shared memory", found=found)
    return Check(
        name="shared memory",
        found=found,
        cost="loader workers may die of a bus error, and Ray uses the disk instead",
        cure="start the container with --shm-size=8g, or with --ipc=host",
    )


def check_store(folder: Path) -> Check:
    """Check that the default store can be written in `folder`."""
    file = folder / DEFAULT_FILE
    writable = os.access(file if file.exists() else folder, os.W_OK) and os.access(folder, os.W_OK)
    if writable:
        return Check(
            name="store", found=f"{file} ({'exists' if file.exists() else 'can be created'})"
        )
    return Check(
        name="store",
        found=f"{file} cannot be written",
        cost="no run can start here",
        cure="change to a folder of yours, or name a store with --storage",
    )


def check_disk(folder: Path) -> Check:
    """Check the free disk space for the store, the logs and the compiled kernels."""
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.0f} GiB free in {folder}"
    if free >= ENOUGH_DISK_BYTES:
        return Check(name="disk", found=found)
    return Check(
        name="disk",
        found=found,
        cost="a long run with compilation can fill the disk, which ends it",
        cure=f"free {ENOUGH_DISK_BYTES // GIB} GiB, or name a store elsewhere with --storage",
    )
