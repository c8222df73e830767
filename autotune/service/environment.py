"""The environment variables of a job: what programs need to run, and nothing of the server's."""

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
    url: str | None, location: Location, folder: Path
) -> tuple[str, dict[str, str]]:
    """Return the `--storage` of a job, and the variables that it needs.

    A password goes to the job by a file of mode 600: command lines can be read by everybody on the
    machine.

    Args:
        url: as the server got it.
        location: what it stands for.
        folder: where to keep the file.
    """
    if location.path is not None:
        return str(location.path.absolute()), {}
    password = location.url.password
    if password is None:
        return str(url), {}
    file = folder / PASSWORD_FILE
    file.touch(mode=0o600)
    escaped = str(password).replace("\\", r"\\").replace(":", r"\:")
    file.write_text(f"*:*:*:*:{escaped}\n")
    bare = location.url.set(drivername="postgresql", password=None)
    return bare.render_as_string(hide_password=False), {"PGPASSFILE": str(file)}
