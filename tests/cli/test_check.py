"""`autotune check`: two revisions of a real repository, in turn, in fresh processes."""

import json
import subprocess

import pytest

MODEL = """
import time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pauses import PAUSE_S

class Pause(nn.Module):
    # Sleeping takes the same time on a busy machine.
    def forward(self, x):
        time.sleep(PAUSE_S)
        return x

def build_model():
    return nn.Sequential(Pause(), nn.Linear(8, 2))

def build_dataset():
    return TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.fixture
def repository(tmp_path):
    """A repository whose one revision pauses for 0.15 s in each step."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "pauses.py").write_text("PAUSE_S = 0.15\n")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "model.py", "pauses.py"),
        (*who, "commit", "--quiet", "--message", "the first"),
    ):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return tmp_path


@pytest.mark.usefixtures("quick_trials")
def test_a_slower_revision_fails(type_command, repository):
    """The modules beside the workload are the revision's, too; both sides are kept."""
    (repository / "pauses.py").write_text("PAUSE_S = 0.45\n")
    options = ("--against", "main", "--budget", "60s", "--junit", "result.xml", "--github")
    status, out, err = type_command("autotune", "check", "model.py", *options)
    assert status == 6, out + err
    assert "WORSE than allowed" in out
    assert "::error title=autotune check::throughput" in out
    assert "became worse than its limits allow" in err
    assert 'failures="1"' in (repository / "result.xml").read_text()
    query = "SELECT commit_subject, is_changed FROM trend_points ORDER BY id"
    _, kept, _ = type_command("autotune", "query", "--json", query)
    assert [row["is_changed"] for row in json.loads(kept)] in ([False, True], [0, 1])


@pytest.mark.usefixtures("quick_trials")
def test_only_the_third_drop_beside_stored_figures_fails(type_command, repository):
    """The first check has nothing to compare with, and keeps its figures."""
    words = ("check", "model.py", "--budget", "20s", "--json")
    answers = []
    for pause in ("0.15", "0.45", "0.45", "0.45"):
        (repository / "pauses.py").write_text(f"PAUSE_S = {pause}\n")
        status, out, err = type_command("autotune", *words)
        assert out, err
        answers.append((status, json.loads(out)["drops"]))
    assert answers == [(0, 0), (0, 1), (0, 2), (6, 3)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--against", "nobody"), "name a branch, a tag or a commit"),
        (("--against", "nothing.yaml"), "there is no such plan file"),
        (("--max-drop", "fast"), "write it like 5%"),
        (("--max-drop", "200%"), "between 0 and 1"),
    ],
)
@pytest.mark.usefixtures("quick_trials")
def test_what_cannot_be_checked_is_told_in_words(type_command, repository, words, told):
    """Before anything is measured."""
    status, _, err = type_command("autotune", "check", str(repository / "model.py"), *words)
    assert status == 2
    assert told in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("quick_trials")
def test_outside_of_a_repository_there_are_no_revisions(type_command, tmp_path):
    """The message says what else may be compared with."""
    (tmp_path / "model.py").write_text(MODEL.replace("from pauses import PAUSE_S", "PAUSE_S = 0"))
    status, _, err = type_command("autotune", "check", "model.py", "--against", "main")
    assert status == 2
    assert "is in no git repository" in err
