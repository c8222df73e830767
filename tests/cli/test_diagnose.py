"""`autotune diagnose`: what limits a step, from the command line."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from autotune.cli import diagnose
from autotune.dispatch.others import OthersLoad, Watch, others_load
from autotune.report import doubt
from autotune.storage.testing import make_measurement
from autotune.trials.result import Window
from tests.trials.conftest import TINY

READING = """
def compute_loss(model, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    if loss.item() > 1e9:  # here
        print("large")
    return loss
"""


QUIET = OthersLoad(cores=0.1, num_cores=2)


@pytest.fixture
def autotune(tmp_path, type_command, quick_trials, monkeypatch):
    """Type `autotune` and more beside a small `model.py` that reads its loss.

    Whatever runs beside the tests, the machine counts as quiet and steady.
    """
    (tmp_path / "model.py").write_text(TINY + READING)
    monkeypatch.setattr(diagnose, "others_load", lambda: QUIET)
    monkeypatch.setattr(doubt, "_UNSTEADY", math.inf)
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


def test_on_a_machine_that_others_load_it_cannot_tell(autotune, monkeypatch):
    """It names what others used, gives no advice, and a program reads null with the reason."""
    loads = [QUIET, OthersLoad(cores=1.9, num_cores=2, device_share=0.5)]
    monkeypatch.setattr(diagnose, "others_load", iter(loads * 2).__next__)
    status, out, err = autotune("diagnose", "model.py")
    assert status == 0, err
    text = " ".join(out.split())
    assert "bound by cannot tell because other programs used 1.9 of 2 cores and" in text
    assert "used a GPU for 50% of the time; try again when nothing else runs" in text
    assert "what to do" not in text
    found = json.loads(autotune("diagnose", "model.py", "--json")[1])["diagnosis"]
    assert found["bound"] is None
    assert "1.9 of 2 cores" in found["unknown"]["bound"]


def test_windows_that_differ_by_much_are_no_steady_machine():
    """19 samples/s and then 1,970 are two machines; a few percent are one."""
    window = Window(steps=10, samples=100, seconds=1.0, data_wait_s=0.0)
    slow = replace(window, seconds=100 / 19)
    unsteady = make_measurement(100.0, windows=(slow, replace(window, seconds=100 / 1970)))
    assert "from 19 to 1,970 samples/s" in doubt.why_in_doubt(unsteady, [QUIET])
    steady = make_measurement(100.0, windows=(window, replace(window, seconds=1.05)))
    assert doubt.why_in_doubt(steady, [QUIET]) is None


def test_what_others_use_is_looked_at():
    """Of all cores that this process may use, no more than there are."""
    load = others_load()
    assert 0 <= load.cores <= load.num_cores
    assert load.num_cores == len(os.sched_getaffinity(0))


def test_a_watch_sees_what_others_use_beside_this_process():
    """Here one that computes all the time, from when the watch was made until it is asked."""
    endless = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(endless) as other:
        watch = Watch()
        time.sleep(0.5)
        load = watch.load()
        other.kill()
    assert 0.1 < load.cores <= load.num_cores + 0.1


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
