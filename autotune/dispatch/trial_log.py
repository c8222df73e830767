"""The log file of a trial: names it, redirects output into it, limits its size, reads its end."""

import ctypes
import os
import threading
from pathlib import Path

MAX_BYTES = 8 * 2**20  # of disk space for the log of a running trial
KEPT_BYTES = 64 * 2**10  # from the end of a longer log, once its trial has ended
TAIL_BYTES = 16 * 2**10  # from the end, for the store
CHECK_EVERY_S = 0.1  # between checks of a growing log's size
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE and KEEP_SIZE, fallocate(2)
_libc = ctypes.CDLL(None)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def log_path(log_dir: Path, number: int, rank: int = 0) -> Path:
    """Return a rank's log file: `trial-0007.log`, for other ranks `trial-0007-rank-1.log`."""
    return log_dir / (f"trial-{number:04d}" + (f"-rank-{rank}.log" if rank else ".log"))


def redirect_output(path: Path) -> None:
    """Write the stdout and stderr of this process, and of its later children, to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def read_tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the last `size` bytes of a file as text; an empty text when there is no such file."""
    return _last_bytes(path, size).decode(errors="replace").replace("\0", "")


def _last_bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except FileNotFoundError:
        return b""


def read_and_remove(path: Path) -> bytes:
    """Return the content of a file and remove it; empty when there is no such file."""
    if not path.exists():
        return b""
    content = path.read_bytes()
    path.unlink()
    return content


def shorten(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Reduce a finished log of more than `max_bytes` to its last `KEPT_BYTES`."""
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    tail, dropped = _last_bytes(path, KEPT_BYTES), path.stat().st_size - KEPT_BYTES
    path.write_bytes(f"[{dropped} bytes left out]\n".encode() + tail)


def punch_hole(path: Path, keep_bytes: int = MAX_BYTES) -> None:
    """Free the disk space of all but the last `keep_bytes` of a log that is being written.

    The beginning becomes a hole, as truncating could lose what is written at the same moment.
    File systems without holes (some network ones) keep the whole log until the trial ends.
    """
    if path.exists() and (size := path.stat().st_size) > keep_bytes:
        with path.open("r+b") as file:
            _libc.fallocate(file.fileno(), _PUNCH_HOLE, 0, size - keep_bytes)


class BoundedLog:
    """A growing log whose disk space a thread limits to `MAX_BYTES` until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> str:
        """Stop the thread, shorten the log, and return its end."""
        self._ended.set()
        self._thread.join()
        shorten(self.path)
        return read_tail(self.path)

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_EVERY_S):
            punch_hole(self.path)
