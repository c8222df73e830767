"""Kernels: what the compiler has made for a plan, in one file that other processes start from.

The file is a zip archive. It holds the compiler's own portable cache, the shared libraries that
the C++ compiler wrote, which that cache leaves out, and what they were made for.
"""

import importlib
import json
import os
import platform
import sys
import zipfile
from pathlib import Path

import torch

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.failure import InvalidPlanError
from autotune.trials.processor import processor_name

_MADE_FOR = "made_for.json"
_CACHE = "cache"
_LIBRARIES = "libraries/"
_NOT_USED = "so the first step compiles as without the file"
_MAKE_ONE = "`autotune export RUN --with-kernels` writes one for this machine"


def use_empty_cache_beside(path: Path) -> None:
    """Let the compiler keep its cache in an empty folder beside the file that kernels go to.

    To be called before anything is compiled. It holds for child processes, too.
    """
    folder = path.with_name("compiled")
    folder.mkdir(exist_ok=True)  # a child of a command comes here again
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.pop("TRITON_CACHE_DIR", None)  # it is then below the other one


def save_kernels(path: Path, device: torch.device) -> None:
    """Write what this process has compiled since `use_empty_cache_beside` to a file.

    Raises:
        InvalidPlanError: when the compiler has kept nothing.
    """
    if not hasattr(torch.compiler, "save_cache_artifacts"):
        raise InvalidPlanError(
            f"torch {torch.__version__} cannot save what it compiles; torch 2.7 and newer can"
        )
    saved = torch.compiler.save_cache_artifacts()
    if saved is None or not saved[1].inductor_artifacts:
        raise InvalidPlanError(
            "the compiler kept nothing in its cache: it is switched off, or the model's graphs "
            "hold what it cannot keep; TORCH_LOGS=+torch._inductor.codecache says which"
        )
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MADE_FOR, json.dumps(_versions(device), indent=2))
        archive.writestr(_CACHE, saved[0])
        for library in sorted(folder.rglob("*.so")):
            archive.write(library, _LIBRARIES + library.relative_to(folder).as_posix())


def load_plans_kernels(plan: Plan, device: torch.device) -> None:
    """Put the kernels that came with a plan into the compiler's cache, if the plan compiles.

    They are code, which runs with the rights of this process. Those that do not fit are left
    alone, with one line on stderr that says why.
    """
    if plan.kernels is None or not is_compiled(plan):
        return
    path = Path(plan.kernels)
    problem = _problem_of_loading(path, device)
    if problem is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        sys.stderr.write(f"autotune: {path.name} is not used: {problem}, {_NOT_USED}\n")


def _problem_of_loading(path: Path, device: torch.device) -> str | None:
    """Load a file, and return why it cannot be used; None: it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            made_for = json.loads(archive.read(_MADE_FOR))
            if other := _differences(made_for, _versions(device)):
                return f"it was made for {other} ({_MAKE_ONE})"
            contents = {name: archive.read(name) for name in archive.namelist()}
        libraries = _libraries(contents)
        if torch.compiler.load_cache_artifacts(contents[_CACHE]) is None:
            return f"torch {torch.__version__} cannot read it ({_MAKE_ONE})"
        # After the other, which leaves out what it finds a folder of.
        for target, content in libraries.items():
            _write_at_once(target, content)
    except FileNotFoundError:
        return "there is no such file any more"
    except Exception as error:  # noqa: BLE001  whatever a damaged file makes of its readers
        words = next(iter(str(error).splitlines()), type(error).__name__)
        return f"it cannot be read: {words} ({_MAKE_ONE})"
    return None


def _differences(made_for: dict[str, str], here: dict[str, str]) -> str:
    """Return `torch 2.11.0; here it is torch 2.13.0`; an empty string where all is the same."""
    differing = [name for name in here if made_for.get(name) != here[name]]
    there = ", ".join(f"{name} {made_for.get(name)}" for name in differing)
    return there and f"{there}; here it is " + ", ".join(f"{n} {here[n]}" for n in differing)


def _versions(device: torch.device) -> dict[str, str]:
    """Return what kernels are made for; they run nowhere else."""
    name = processor_name()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "torch": str(torch.__version__),
        "triton": _triton_version(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "device": f"{device.type} ({name})",
    }


def _triton_version() -> str:
    try:
        # Builds of torch install it under several names; the compiler for CUDA imports it anyway.
        return str(importlib.import_module("triton").__version__)
    except ImportError:
        return "not installed"


def _libraries(contents: dict[str, bytes]) -> dict[Path, bytes]:
    """Return the shared libraries of a file, by where the compiler looks for its own.

    Those that are there already are left out.

    Raises:
        ValueError: for a name that leads out of the compiler's cache folder.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # noqa: PLC0415  2 s to import

    folder, found = Path(cache_dir()), {}
    for name in (name for name in contents if name.startswith(_LIBRARIES)):
        target = folder / name.removeprefix(_LIBRARIES)
        if ".." in target.parts or not target.is_relative_to(folder):
            raise ValueError(f"{name} leads out of the compiler's cache folder")
        if not target.exists():
            found[target] = contents[name]
    return found


def _write_at_once(target: Path, content: bytes) -> None:
    """Write a file that another process may load meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.chmod(0o755)
    temporary.replace(target)
