"""Revisions of a real git repository."""

import subprocess

import pytest

from autotune.agent.check.revision import checked_out, commit_of, repository_of
from autotune.errors import UsageError


@pytest.fixture
def repository(tmp_path):
    """A repository with two commits, a changed file and data that git ignores."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "model.py").write_text("first\n")
    (folder / ".gitignore").write_text("data\n__pycache__\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "the first")
    (folder / "model.py").write_text("second\n")
    commit(folder, "the second")
    (folder / "data").mkdir()
    (folder / "data" / "numbers").write_text("1 2 3")
    (folder / "__pycache__").mkdir()
    return folder


def git(folder, *words):
    subprocess.run(["git", "-C", folder, *words], check=True)


def commit(folder, subject):
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    git(folder, "add", "--all")
    git(folder, *who, "commit", "--quiet", "--message", subject)


def test_a_folder_knows_its_commit(repository, tmp_path):
    """And whether tracked files differ from it; outside of a repository there is none."""
    clean = commit_of(repository)
    assert (clean.subject, clean.is_changed) == ("the second", False)
    assert clean.at.tzinfo is not None
    (repository / "model.py").write_text("third\n")
    assert commit_of(repository).shown == clean.hash[:9] + "+"
    assert commit_of(tmp_path) is None
    assert repository_of(repository / "data") == repository.resolve()
    assert repository_of(tmp_path) is None


def test_a_revision_has_its_own_files_and_the_data_of_now(repository):
    """The user's folder stays as it is; compiled Python of another revision is left out."""
    with checked_out(repository, "HEAD~1") as (found, folder):
        assert found.subject == "the first"
        assert (folder / "model.py").read_text() == "first\n"
        assert (folder / "data" / "numbers").read_text() == "1 2 3"
        assert not (folder / "__pycache__").exists()
    assert not folder.exists()
    assert (repository / "model.py").read_text() == "second\n"
    assert (repository / "data" / "numbers").exists()


@pytest.mark.parametrize("name", ["nobody", "--output=/tmp/x", "HEAD~9", ""])
def test_an_unknown_revision_is_refused(repository, name):
    """The message names what `--against` takes."""
    with (
        pytest.raises(UsageError, match="name a branch, a tag or a commit"),
        checked_out(repository, name),
    ):
        pass
