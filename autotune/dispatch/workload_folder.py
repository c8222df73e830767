"""Copies the workload's folder to cluster nodes that do not have it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import ClusterError

MAX_BYTES = 100 * 2**20  # of files that are copied to nodes
# Folders and files that programs generate; a workload does not read them.
_GENERATED_FOLDERS = frozenset({"__pycache__", "autotune-logs", "node_modules"})
_GENERATED_SUFFIXES = frozenset({".db", ".db-wal", ".db-shm", ".pyc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    """The files of a folder, as (path inside the folder, content)."""

    files: tuple[tuple[str, bytes], ...]

    def unpack(self, folder: Path) -> None:
        """Write the files into `folder`."""
        for name, content in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def pack_folder(folder: Path) -> PackedFolder:
    """Return the files of `folder`, without virtual environments, caches and hidden files.

    Raises:
        ClusterError: when they are larger than `MAX_BYTES` together.
    """
    paths = sorted(_files(folder))
    total = sum(path.stat().st_size for path in paths)
    if total > MAX_BYTES:
        raise ClusterError(
            f"a node of the cluster lacks {folder}, and its {total / 2**20:.0f} MiB are more than "
            f"the {MAX_BYTES // 2**20} MiB that a run copies to nodes; put the workload into a "
            "folder of its own, or the folder at the same path on every node"
        )
    return PackedFolder(files=tuple((str(p.relative_to(folder)), p.read_bytes()) for p in paths))


def source_hash(folder: Path) -> str | None:
    """Return a SHA-256 of the Python files below `folder`; None when there is no such folder."""
    if not folder.is_dir():
        return None
    sources = sorted(path for path in _files(folder) if path.suffix == ".py")
    sha = hashlib.sha256()
    for path in sources:
        sha.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in _GENERATED_FOLDERS or path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from _files(path)
        elif path.suffix not in _GENERATED_SUFFIXES:
            yield path
