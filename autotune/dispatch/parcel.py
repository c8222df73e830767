"""The workload's folder, packed for nodes that do not have it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import ClusterError

MAX_BYTES = 100 * 2**20
# What programs leave in a folder, and nobody needs elsewhere.
_LEFT_OUT = frozenset({"__pycache__", "autotune-logs", "node_modules"})
_LEFT_OUT_SUFFIXES = frozenset({".db", ".db-wal", ".db-shm", ".pyc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Files by their paths inside the folder."""

    files: tuple[tuple[str, bytes], ...]

    def unpack(self, folder: Path) -> None:
        """Write the files below `folder`."""
        for name, content in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def pack(folder: Path) -> Parcel:
    """Return the folder's files, without environments, caches and hidden ones.

    Raises:
        ClusterError: when they are too many to send around.
    """
    paths = sorted(_files(folder))
    total = sum(path.stat().st_size for path in paths)
    if total > MAX_BYTES:
        raise ClusterError(
            f"a node of the cluster lacks {folder}, and its {total / 2**20:.0f} MiB are more than "
            f"the {MAX_BYTES // 2**20} MiB that travel with a run; put the workload into a folder "
            "of its own, or the folder at the same path on every node"
        )
    return Parcel(files=tuple((str(p.relative_to(folder)), p.read_bytes()) for p in paths))


def digest(folder: Path) -> str | None:
    """Return a hash of the Python files below `folder`, None when there is no such folder."""
    if not folder.is_dir():
        return None
    sources = sorted(path for path in _files(folder) if path.suffix == ".py")
    found = hashlib.sha256()
    for path in sources:
        found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from _files(path)
        elif path.suffix not in _LEFT_OUT_SUFFIXES:
            yield path
