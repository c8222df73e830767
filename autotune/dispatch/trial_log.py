"""The log of a trial: where its output goes, how it stays small, and how its end is read."""

import ctypes
import os
import threading
from pathlib import Path

MAX_BYTES = 8 * 2**20
KEPT_BYTES = 64 * 2**10
TAIL_BYTES = 16 * 2**10
CHECK_EVERY_S = 0.1
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE and KEEP_SIZE, fallocate(2)
_libc = ctypes.CDLL(None)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def log_path(log_dir: Path, number: int, rank: int = 0) -> Path:
    """Return the log file of a rank of trial `number`; that of rank 0 is the trial's own."""
    return log_dir / (f"trial-{number:04d}" + (f"-rank-{rank}.log" if rank else ".log"))


def redirect_output(path: Path) -> None:
    """Send this process's stdout and stderr, and those of its children to come, to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def read_tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the last `size` bytes as text; empty when there is no such file."""
    return _last_bytes(path, size).decode(errors="replace").replace("\0", "")


def _last_bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except FileNotFoundError:
        return b""


def take(path: Path) -> bytes:
    """Return what is in the file and remove it; nothing when there is no such file."""
    if not path.exists():
        return b""
    content = path.read_bytes()
    path.unlink()
    return content


def shorten(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Cut a log above `max_bytes` that nobody writes to any more down to its end."""
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    tail, dropped = _last_bytes(path, KEPT_BYTES), path.stat().st_size - KEPT_BYTES
    path.write_bytes(f"[{dropped} bytes left out]\n".encode() + tail)


def free_beginning(path: Path, keep_bytes: int = MAX_BYTES) -> None:
    """Give the disk space of all but the end of a growing log back, and lose nothing of its end.

    Truncating would lose what is written meanwhile. File systems that cannot do it (some network
    ones) keep the log whole until the trial's end.
    """
    if path.exists() and (size := path.stat().st_size) > keep_bytes:
        with path.open("r+b") as file:
            _libc.fallocate(file.fileno(), _PUNCH_HOLE, 0, size - keep_bytes)


class BoundedLog:
    """Keeps one log short from a thread of its own until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> str:
        """Stop watching and return the log's tail."""
        self._ended.set()
        self._thread.join()
        shorten(self.path)
        return read_tail(self.path)

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_EVERY_S):
            free_beginning(self.path)
