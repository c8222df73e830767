"""What autotune needs of a machine, looked at one by one; each gap with its cost and its cure."""

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

GIB = 2**30
ENOUGH_SHARED_BYTES = GIB
ENOUGH_DISK_BYTES = 5 * GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  that is where Linux keeps it
PROBE_TIMEOUT_S = 120
# In a process of its own: a broken torch can take its process down.
TORCH_PROBE = """
import json, torch
available = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] * available
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": names}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. A gap has a `cost`, and a `cure` in words.

    Attributes:
        name: what was looked at.
        found: what is there.
        cost: what the gap costs; empty when there is none.
        cure: how to mend it.
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
    """Look at everything that autotune uses, cheapest first."""
    torch, driver = probe_torch(), probe_driver()
    yield check_python()
    yield check_torch(torch)
    yield check_devices(torch, driver)
    yield check_compiler()
    if torch.get("cuda"):
        yield check_package("triton", "torch.compile is out on this GPU", "reinstall torch")
    yield check_package("ray", "no trial can run", "pip install ray")
    yield check_cores()
    yield Check(name="memory", found=f"{host_memory_bytes() / GIB:.0f} GiB")
    yield check_shared_memory()
    yield check_store(Path.cwd())
    yield check_disk(Path.cwd())


def check_python() -> Check:
    """Look at the interpreter."""
    return Check(name="python", found=f"{sys.version.split()[0]} ({sys.executable})")


def probe_torch() -> dict[str, Any]:
    """Return torch's version, CUDA build and devices, or an `error`, from a process of its own."""
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
    """Return the NVIDIA driver, the CUDA version it goes up to and its devices; empty without."""
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
    """Look at torch itself."""
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
    """Look at the devices that the driver has, and whether torch reaches them."""
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
    """Look for what torch.compile builds its kernels with."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    cost = "compile_mode and the knobs beside it are out, often the largest gain"
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
    """Look for an installed package, without importing it."""
    if util.find_spec(name) is None:
        return Check(name=name, found="not installed", cost=cost, cure=cure)
    return Check(name=name, found=metadata.version(name))


def check_cores() -> Check:
    """Look at the cores this process may use, its affinity and its container's limit included."""
    usable, present = num_cores(), os.cpu_count() or 1
    found = f"{usable} of {present}" if usable < present else f"{usable}"
    if usable > 1:
        return Check(name="cores", found=found)
    return Check(
        name="cores",
        found=found,
        cost="loader workers take their time from the training process",
        cure="give the container more cores, for example with --cpus=8",
    )


def check_shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Look at the shared memory that loader workers and Ray hand data over in."""
    total = shutil.disk_usage(folder).total if folder.is_dir() else 0
    found = f"{total / GIB:.2f} GiB in {folder}"
    if total >= ENOUGH_SHARED_BYTES:
        return Check(name="shared memory", found=found)
    return Check(
        name="shared memory",
        found=found,
        cost="loader workers may die of a bus error, Ray writes to the disk instead",
        cure="start the container with --shm-size=8g, or with --ipc=host",
    )


def check_store(folder: Path) -> Check:
    """Look whether the default store can be written in `folder`."""
    file = folder / DEFAULT_FILE
    writable = os.access(file if file.exists() else folder, os.W_OK) and os.access(folder, os.W_OK)
    if writable:
        return Check(name="store", found=f"{file} ({'there' if file.exists() else 'writable'})")
    return Check(
        name="store",
        found=f"{file} cannot be written",
        cost="no run can start here",
        cure="change to a folder of yours, or name a store with --storage",
    )


def check_disk(folder: Path) -> Check:
    """Look at the free disk for the store, the logs and the compiled kernels."""
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.0f} GiB free in {folder}"
    if free >= ENOUGH_DISK_BYTES:
        return Check(name="disk", found=found)
    return Check(
        name="disk",
        found=found,
        cost="a long run with compilation can fill it, and ends there",
        cure=f"free {ENOUGH_DISK_BYTES // GIB} GiB, or name a store elsewhere with --storage",
    )
