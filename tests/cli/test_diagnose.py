"""`autotune diagnose`: what limits a step, from the command line."""

import json
from functools import partial

import pytest

from tests.trials.conftest import TINY

READING = """
def compute_loss(model, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    if loss.item() > 1e9:  # here
        print("large")
    return loss
"""


@pytest.fixture
def autotune(tmp_path, type_command, quick_trials):
    """Type `autotune` and more beside a small `model.py` that reads its loss."""
    (tmp_path / "model.py").write_text(TINY + READING)
    return partial(type_command, "autotune")


def test_what_limits_a_step_is_printed(autotune, tmp_path):
    """The bound with its evidence, the shares, the user's line, and where the trace is."""
    status, out, err = autotune("diagnose", "model.py", "--trace", "trace.json")
    assert status == 0, err
    line = (TINY + READING).splitlines().index("    if loss.item() > 1e9:  # here") + 1
    assert f"host synchronisation, model.py:{line}:" in out
    for words in ("bound by", "evidence", "optimizer", "model FLOPs", "what to do"):
        assert words in out
    assert str(tmp_path / "trace.json") in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_diagnosis_as_json(autotune):
    """One document: the plan, what was measured, and the diagnosis with nulls where unknown."""
    status, out, err = autotune("diagnose", "model.py", "--fix", "batch_size=8", "--json")
    assert status == 0, err
    document = json.loads(out)
    assert document["plan"]["batch_size"] == 8
    assert document["measurement"]["throughput"] > 0
    assert document["diagnosis"]["bound"] is not None
    assert document["diagnosis"]["shares"]["idle"] is None
    assert document["diagnosis"]["took_s"] > 0
    assert "host_sync" in {finding["kind"] for finding in document["diagnosis"]["findings"]}


MISTAKES = {
    "trace_name": (["--trace", "model.py"], "must end in .json"),
    "trace_folder": (["--trace", "no/such/trace.json"], "no file can be written there"),
    "ranks": (["--plan", "two.yaml"], "is for 2 ranks"),
    "no_plan": (["--plan", "none.yaml"], "none.yaml"),
    "knob": (["--fix", "precision"], "has no value"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained(case, autotune, tmp_path):
    """Before anything runs, on stderr, and without a traceback."""
    (tmp_path / "two.yaml").write_text("plan: {precision: fp32, sharding: ddp}\nranks: 2\n")
    words, message = MISTAKES[case]
    status, out, err = autotune("diagnose", "model.py", *words)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_workload_that_fails_shows_its_own_traceback(autotune, tmp_path):
    """The exit code says that the workload is wrong."""
    (tmp_path / "model.py").write_text(TINY + "def compute_loss(model, batch):\n    1 / 0\n")
    status, _, err = autotune("diagnose", "model.py")
    assert status == 3
    assert "ZeroDivisionError" in err
