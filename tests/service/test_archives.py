"""Archives of workloads, also those that a stranger made to do harm."""

import gzip
import io
import os
import tarfile
from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.service.archives import LIMITS, pack, unpack
from tests.service.conftest import packed


def with_member(name, kind=tarfile.REGTYPE, link="", data=b""):
    """Return an archive with one member of a kind."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, len(data)
        archive.addfile(member, io.BytesIO(data))
    return into.getvalue()


def test_a_folder_comes_out_as_it_went_in(tmp_path):
    """With the files below it, and without what can be made again."""
    folder = tmp_path / "in"
    (folder / "data").mkdir(parents=True)
    (folder / ".venv").mkdir()
    (folder / "model.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "data" / "a.bin").write_bytes(b"\0\1")
    (folder / "data" / "old.ckpt").write_bytes(b"\0")
    (folder / ".venv" / "python").write_text("")
    (folder / "autotune.db-wal").write_text("")
    (folder / "linked.py").symlink_to(folder / "model.py")
    with (tmp_path / "a.tar.gz").open("w+b") as file:
        pack(folder, file, exclude=["*.ckpt"])
        unpack(file, tmp_path / "out")
    found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    assert found == {"model.py", "run.sh", "data/a.bin", "linked.py"}
    assert (tmp_path / "out" / "linked.py").read_text() == "x = 1\n"
    assert not (tmp_path / "out" / "linked.py").is_symlink()
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)


def test_a_link_to_a_folder_is_not_packed(tmp_path):
    """It could lead to anything; the message says what to do."""
    (tmp_path / "data").symlink_to("/etc")
    with pytest.raises(UsageError, match=r"link to a folder.*--exclude"):
        pack(tmp_path, io.BytesIO())


def test_a_folder_that_is_too_large_is_not_packed_to_its_end(tmp_path):
    """It says so as soon as the limit is passed."""
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(os.urandom(100_000))
    into = io.BytesIO()
    with pytest.raises(UsageError, match=r"too large.*--exclude"):
        pack(tmp_path, into, max_bytes=300_000)
    assert into.tell() < 1_000_000


HARMFUL = (
    "above",
    "above from below",
    "absolute",
    "link outside",
    "link inside",
    "hard link",
    "device",
    "pipe",
    "no archive",
    "no tar",
    "cut off",
    "empty",
)


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (with_member("../out.py"), "leads out of its folder"),
        (with_member("a/../../out.py"), "leads out of its folder"),
        (with_member("/etc/cron.d/x"), "leads out of its folder"),
        (with_member("a", tarfile.SYMTYPE, "/etc/passwd"), "neither a plain file"),
        (with_member("a", tarfile.SYMTYPE, "b"), "neither a plain file"),
        (with_member("a", tarfile.LNKTYPE, "/etc/passwd"), "neither a plain file"),
        (with_member("a", tarfile.CHRTYPE), "neither a plain file"),
        (with_member("a", tarfile.FIFOTYPE), "neither a plain file"),
        (b"no archive", "cannot be read"),
        (gzip.compress(b"no tar" * 1000), "cannot be read"),
        (packed()[:-20], "cannot be read"),
        (b"", "cannot be read"),
    ],
    ids=HARMFUL,
)
def test_harmful_and_broken_archives_are_refused(tmp_path, archive, said):
    """Nothing appears outside of the folder."""
    with pytest.raises(UsageError, match=said):
        unpack(io.BytesIO(archive), tmp_path / "in" / "out")
    assert {path.name for path in tmp_path.rglob("*")} <= {"in", "out", "model.py"}


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path):
    """Zeros pack to a thousandth; no more of it than the allowed ratio is unpacked."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 2**28
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(UsageError, match="made to fill disks"):
        unpack(into, tmp_path / "out")
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*"))
    assert written <= LIMITS.max_ratio * len(into.getvalue())


def test_a_header_that_fills_memory_is_refused(tmp_path):
    """Headers are read as a whole."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a")
        member.pax_headers = {"comment": "x" * 2**22}
        archive.addfile(member)
    with pytest.raises(UsageError, match="a header of more than"):
        unpack(into, tmp_path / "out")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (replace(LIMITS, max_members=2), "more than 2 files"),
        (replace(LIMITS, max_bytes=10), "unpacks to more than"),
    ],
)
def test_too_much_is_refused(tmp_path, limits, said):
    """By the number of files and by their size."""
    archive = packed(**{f"f{number}": "12345" for number in range(5)})
    with pytest.raises(UsageError, match=said):
        unpack(io.BytesIO(archive), tmp_path / "out", limits)
