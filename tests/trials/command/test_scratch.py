"""The folder that a command works in: it looks like the user's, which stays as it is."""

import os
import subprocess
import sys

import pytest

from autotune.trials.command.scratch import mirror, mirror_tree

WRITING = """
import sys
from autotune.trials.command.scratch import confine
confine(sys.argv[1], sys.argv[2])
import os, shutil
from pathlib import Path
"""


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    (home / "data" / "deep").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (home / "data" / "deep" / "points.txt").write_text("1 2 3")
    return home


@pytest.fixture
def write(home, tmp_path):
    """Run statements in a process that is confined to a mirror of `home`."""
    scratch = tmp_path / "scratch"
    mirror(home, scratch)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def wrote(statements: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WRITING + statements, str(scratch), str(home)]
        return subprocess.run(
            command,
            cwd=scratch,
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )

    wrote.scratch = scratch
    return wrote


def contents(folder):
    return {p.relative_to(folder): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("statements", "name", "text"),
    [
        ("open('new.txt', 'w').write('new')", "new.txt", "new"),
        ("open('notes.txt', 'w').write('other')", "notes.txt", "other"),
        ("open('notes.txt', 'a').write(' and more')", "notes.txt", "mine and more"),
        ("Path('data/deep/points.txt').write_text('4')", "data/deep/points.txt", "4"),
        ("os.makedirs('data/out'); Path('data/out/a').write_text('b')", "data/out/a", "b"),
        ("os.rename('notes.txt', 'data/notes.txt')", "data/notes.txt", "mine"),
        (
            "f = os.open('notes.txt', os.O_WRONLY | os.O_TRUNC); os.write(f, b'x')",
            "notes.txt",
            "x",
        ),
        ("shutil.copy('notes.txt', 'data/deep/copy.txt')", "data/deep/copy.txt", "mine"),
    ],
)
def test_what_is_written_goes_into_the_scratch_folder(write, home, statements, name, text):
    before = contents(home)
    done = write(statements)
    assert done.returncode == 0, done.stderr
    assert (write.scratch / name).read_text() == text
    assert contents(home) == before


@pytest.mark.parametrize("statement", ["os.remove('notes.txt')", "shutil.rmtree('data')"])
def test_what_is_removed_stays_in_the_users_folder(write, home, statement):
    before = contents(home)
    write(statement)
    assert contents(home) == before


def test_files_that_are_only_read_are_not_copied(write):
    done = write("print(open('data/deep/points.txt').read())")
    assert done.stdout == "1 2 3\n"
    assert (write.scratch / "data").is_symlink()


def test_writing_to_the_users_folder_by_its_own_path_is_refused(write, home):
    done = write("open(sys.argv[2] + '/x', 'w')")
    assert "--output-flag" in done.stderr
    assert not (home / "x").exists()


def test_checkpoints_outside_are_not_written_over(write, tmp_path, monkeypatch):
    """Also where no Python code opens the file, and not below the user's folder."""
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    statement = f"sys.audit('autotune.saved', {str(kept / 'last.pt')!r})"
    assert "--output-flag" in write(statement).stderr


def test_paths_that_go_up_lead_beside_the_users_folder(home, tmp_path):
    (tmp_path / "beside.txt").write_text("4 5 6")
    scratch = mirror_tree(home, tmp_path / "tree")
    assert (scratch / ".." / "beside.txt").read_text() == "4 5 6"
    assert (scratch / "notes.txt").read_text() == "mine"
