"""The environment variables of a job: what programs need to run, and nothing of the server's."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.storage.location import Location

KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "PGHOST",
    "PGPORT",
    "PGUSER",
    "PGDATABASE",
    "PGSSLMODE",
    "PGPASSFILE",
)
KEPT_BEGINNINGS = ("LC_", "NCCL_", "OMP_", "MKL_", "TORCH_HOME", "HF_HOME", "NVIDIA_")
"""Variables that jobs inherit from the server. All others may hold secrets, and are left out."""
PASSWORD_FILE = "postgres-password"  # noqa: S105  the name of the file, no password


def job_environment(server: Mapping[str, str], passed: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of the server's environment that a job inherits.

    Args:
        server: the server's environment.
        passed: further names that whoever runs the server lets through.
    """
    return {
        name: value
        for name, value in server.items()
        if name in KEPT or name in passed or name.startswith(KEPT_BEGINNINGS)
    }


def storage_for_job(
    location: Location, folder: Path, server: Mapping[str, str] = os.environ
) -> tuple[str, dict[str, str]]:
    """Return the `--storage` of a job, and the variables that it needs.

    A password goes to the job by a file of mode 600: command lines can be read by everybody on the
    machine.

    Args:
        location: the store.
        folder: where to keep the file.
        server: the server's environment, which may hold the password.
    """
    password = location.password or server.get("PGPASSWORD")
    if location.path is not None or password is None:
        return location.without_password, {}
    file = folder / PASSWORD_FILE
    file.touch(mode=0o600)
    escaped = password.replace("\\", r"\\").replace(":", r"\:")
    file.write_text(f"*:*:*:*:{escaped}\n")
    return location.without_password, {"PGPASSFILE": str(file)}
