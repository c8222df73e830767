"""Packs a workload's folder into an archive, and unpacks one that a stranger may have made."""

import errno
import fnmatch
import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from autotune.errors import ResourceError, UsageError
from autotune.units import size_in_words

MAX_UPLOAD_BYTES = 100 * 2**20
"""The largest archive that a server takes."""
LEFT_OUT = (
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "node_modules",
    "*.egg-info",
    "autotune-logs",
    "autotune-service",
    "autotune.db*",
)
"""Names that are never packed: they can be made again, or are autotune's own."""
GOES_ON = (
    "leave out what training does not need with --exclude, or let the server read a folder of its "
    "own with --on-server"
)
"""What to do about a folder that cannot be sent, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an archive may unpack to.

    Attributes:
        max_bytes: of all its files.
        max_members: files and folders.
        max_ratio: unpacked over packed bytes, counted above `ratio_from_bytes`: text is packed
            to a tenth, a bomb of zeros to a thousandth.
        max_header_bytes: of one header, which is read into memory as a whole.
    """

    max_bytes: int = 2 * 2**30
    max_members: int = 50_000
    max_ratio: float = 200.0
    ratio_from_bytes: int = 2**24
    max_header_bytes: int = 2**20


LIMITS = Limits()
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that tell of the server's disk, not of the archive."""


def pack(
    folder: Path, into: IO[bytes], exclude: Sequence[str] = (), max_bytes: int = MAX_UPLOAD_BYTES
) -> None:
    """Write a folder to `into` as a compressed tar archive.

    Linked files are packed as what they point to.

    Args:
        folder: of the workload.
        into: a file that is open for writing.
        exclude: patterns of names, or of paths from `folder`, to leave out beside `LEFT_OUT`.
        max_bytes: the largest archive.

    Raises:
        UsageError: when a folder in it is a link, or the archive grows too large.
    """
    patterns = (*LEFT_OUT, *exclude)
    with tarfile.open(fileobj=into, mode="w:gz", dereference=True, compresslevel=6) as archive:
        for path in _files(folder, patterns):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=_anonymous)
            if into.tell() > max_bytes:
                raise UsageError(
                    f"{folder} is too large: its archive would be above "
                    f"{size_in_words(max_bytes)}; {GOES_ON}"
                )


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        here = Path(root)
        names[:] = sorted(n for n in names if not _is_left_out(here / n, folder, patterns))
        for name in names:
            if (here / name).is_symlink():
                raise UsageError(
                    f"{here / name} is a link to a folder, which is not followed; {GOES_ON}"
                )
        for name in sorted(files):
            path = here / name
            if path.is_file() and not _is_left_out(path, folder, patterns):
                yield path


def _is_left_out(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    inside = str(path.relative_to(folder))
    return any(
        fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(inside, pattern)
        for pattern in patterns
    )


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(file: IO[bytes], into: Path, limits: Limits = LIMITS) -> None:
    """Unpack a compressed tar archive into a folder, which is made.

    Raises:
        UsageError: when it is no such archive, or holds anything but files and folders of its
            own, or more than `limits` allow. What was unpacked before stays.
        ResourceError: when the disk is full.
    """
    packed_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    into.mkdir(parents=True)
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            bounded = _Bounded(unpacked, packed_bytes, limits)
            with tarfile.open(fileobj=bounded, mode="r:") as archive:  # type: ignore[call-overload]  # it needs no more of a file
                _unpack_members(archive, into, limits)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise UsageError(
            f"the archive cannot be read ({error}); send a folder packed by `tar -czf`"
        ) from error
    except OSError as error:
        what = f"the archive cannot be unpacked: {error.strerror}"
        if error.errno in FULL:
            raise ResourceError(f"{what}; free some space of the server's") from error
        raise UsageError(f"{what}; send a folder packed by `tar -czf`") from error


class _Bounded:
    """The unpacked bytes of an archive, of which no more can be read than the limits allow."""

    def __init__(self, unpacked: gzip.GzipFile, packed_bytes: int, limits: Limits) -> None:
        self._unpacked = unpacked
        self._limits = limits
        by_ratio = max(limits.max_ratio * packed_bytes, limits.ratio_from_bytes)
        # Headers and padding come on top of the files.
        self._ratio_bytes = int(by_ratio)
        self._max_bytes = limits.max_bytes + 2 * tarfile.BLOCKSIZE * limits.max_members

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self._limits.max_header_bytes:
            raise UsageError("the archive has a header of more than 1 MiB, which no file needs")
        self._check(self._unpacked.tell() + size)
        return self._unpacked.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position; unpacks all before it."""
        self._check(position)
        return self._unpacked.seek(position, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._unpacked.tell()

    def _check(self, position: int) -> None:
        if position > self._ratio_bytes:
            raise UsageError(
                f"the archive unpacks to more than {self._limits.max_ratio:.0f} times its size, "
                "as archives do that are made to fill disks; it was not unpacked"
            )
        if position > self._max_bytes:
            raise UsageError(_too_large(self._limits))


def _unpack_members(archive: tarfile.TarFile, into: Path, limits: Limits) -> None:
    num_bytes = 0
    for number, member in enumerate(archive):
        num_bytes += member.size
        if number >= limits.max_members:
            raise UsageError(f"the archive holds more than {limits.max_members} files; {GOES_ON}")
        if num_bytes > limits.max_bytes:
            raise UsageError(_too_large(limits))
        _check_member(member)
        archive.extract(member, into, filter="data")


def _too_large(limits: Limits) -> str:
    return f"the archive unpacks to more than {size_in_words(limits.max_bytes)}; {GOES_ON}"


def _check_member(member: tarfile.TarInfo) -> None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise UsageError(
            f"the archive has {member.name!r}, which leads out of its folder; pack with paths "
            "from the workload's folder"
        )
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise UsageError(
            f"the archive has {member.name!r}, which is neither a plain file nor a folder; links "
            "and devices are not taken: pack with `tar -h`"
        )
