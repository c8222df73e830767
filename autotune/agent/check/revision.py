"""Revisions of a git repository: which one a folder is at, and another one's files."""

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autotune.errors import UsageError

_TIMEOUT_S = 120.0
_LOOK_S = 10.0  # for git to tell a folder's commit, which nothing depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a repository.

    Attributes:
        hash: in full.
        at: when it was committed.
        subject: the first line of its message.
        is_changed: tracked files differ from it.
    """

    hash: str
    at: datetime
    subject: str
    is_changed: bool = False

    @property
    def shown(self) -> str:
        """The hash as people write it, with `+` where files differ from it."""
        return self.hash[:9] + ("+" if self.is_changed else "")


def commit_of(folder: Path) -> Commit | None:
    """Return the commit that a folder is at; None outside of a repository or without git.

    None as well where git takes long, as in a repository on a slow disk.
    """
    try:
        found = _commit(folder, "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", timeout_s=_LOOK_S)
    except (UsageError, OSError, subprocess.TimeoutExpired):
        return None
    return Commit(
        hash=found.hash, at=found.at, subject=found.subject, is_changed=bool(changed.strip())
    )


def repository_of(folder: Path) -> Path | None:
    """Return the top folder of the repository that a folder is in; None outside of one."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip())
    except (UsageError, OSError):
        return None


@contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[tuple[Commit, Path]]:
    """Give a commit and a folder with its files, which is gone afterwards.

    Files that git does not track, such as data, are linked from the repository's own folder.
    Submodules stay empty.

    Raises:
        UsageError: when there is no such revision.
    """
    commit = _commit(repository, revision)
    with tempfile.TemporaryDirectory(prefix="autotune-revision-") as name:
        folder = Path(name)
        with tarfile.open(fileobj=io.BytesIO(_git(repository, "archive", commit.hash))) as files:
            files.extractall(folder, filter="tar")
        _link_untracked(repository, folder)
        yield commit, folder


def _commit(folder: Path, revision: str) -> Commit:
    words = ("show", "--no-patch", "--format=%H%n%cI%n%s", "--end-of-options")
    try:
        shown = _git(folder, *words, f"{revision}^{{commit}}")
    except UsageError as error:
        raise UsageError(
            f"--against {revision}: {folder} has no such revision; name a branch, a tag or a "
            "commit, or a plan file that exists, or `stored`"
        ) from error
    found, at, subject = shown.decode(errors="replace").split("\n", 2)
    return Commit(hash=found, at=datetime.fromisoformat(at), subject=subject.strip())


def _link_untracked(repository: Path, folder: Path) -> None:
    """Link what git does not track, ignored files too, where the revision has nothing.

    What Python compiled of other files is left out.
    """
    listed = _git(repository, "ls-files", "--others", "--directory", "-z").decode(errors="replace")
    for name in filter(None, listed.split("\0")):
        link = folder / name.rstrip("/")
        if link.name != "__pycache__" and link.parent.is_dir() and not link.exists():
            link.symlink_to(repository / name.rstrip("/"))


def _git(folder: Path, *words: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    done = subprocess.run(  # noqa: S603  no shell
        ["git", "-C", str(folder), *words],  # noqa: S607  the user's own git
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise UsageError(done.stderr.decode(errors="replace").strip())
    return done.stdout
