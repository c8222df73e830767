"""`autotune export --with-kernels`, and the trainings that start from what it writes."""

import json
import os
import subprocess
import sys
import zipfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from autotune.dispatch.machine import detect_hardware
from autotune.search_space.plan import Plan
from autotune.storage.records import NewRun
from autotune.storage.sql import open_store
from autotune.trials.result import Purpose
from tests.trials.command.conftest import SCRIPT
from tests.trials.conftest import TINY

PLAN = {"compile_mode": "default", "batch_size": 8, "threads": 1}
COUNT = """
from torch._dynamo.utils import counters
print(dict(counters["aot_autograd"]), dict(counters["inductor"]))
hits = counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]
open("hits.txt", "w").write(repr(hits))
"""
APPLY = f"""
import autotune
plan = autotune.load_plan("plan.yaml")
with autotune.apply(plan, workload="model.py") as step:
    step(next(iter(step.loader)))
{COUNT}
"""
PREPARE = f"""
import torch, autotune
from torch.utils.data import DataLoader
import model as workload
model, data = workload.build_model(), DataLoader(workload.build_dataset(), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
plan = autotune.load_plan("plan.yaml")
model, optimizer, data = autotune.prepare(model, optimizer, data, plan=plan)
workload.compute_loss(model, next(iter(data))).backward()
{COUNT}
"""


@pytest.fixture
def export(type_command, quick_trials):
    """Type `autotune export last --with-kernels` and more; give status, stdout and stderr."""
    return partial(type_command, "autotune", "export", "last", "--trial", "1", "--with-kernels")


@pytest.fixture
def store_run(tmp_path):
    """Store a run of a workload in this test's folder, with one trial."""

    def store(name, text, *, plan=PLAN, hardware=None, **facts):
        (tmp_path / name).write_text(text)
        run = NewRun(
            key="key",
            name=None,
            workload_path=str(tmp_path / name),
            workload_hash="",
            hardware={**detect_hardware().to_dict(), **(hardware or {})},
            facts=facts,
            options={},
            baseline=Plan.of(plan),
            budget_s=60.0,
            driver="host:1:1",
        )
        with closing(open_store(str(tmp_path / "autotune.db"))) as opened:
            record = opened.create_run(run)
            opened.start_trial(
                record.id, 1, Plan.of(plan), Purpose.BASELINE, "a reason", "trial.log"
            )

    return store


def train(folder, *words):
    """Train in a process with an empty compiler cache; return its hits and misses there."""
    cache = folder / f"cache-{len(list(folder.iterdir()))}"
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is not used" not in done.stderr
    return (folder / "hits.txt").read_text(), libraries(cache)


def libraries(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.so")}


def packed_libraries(path):
    with zipfile.ZipFile(path) as archive:
        names = (name for name in archive.namelist() if name.endswith(".so"))
        return {name.removeprefix("libraries/") for name in names}


def test_a_workload_trains_with_the_kernels_that_were_exported(export, store_run, tmp_path):
    """A process with an empty cache compiles no graph and no C++, also in one's own loop."""
    store_run("model.py", TINY)
    status, out, err = export()
    assert status == 0, err
    assert "written: plan.kernels, " in out
    assert "first step took" in out
    packed = packed_libraries(tmp_path / "plan.kernels")
    for script in (APPLY, PREPARE):
        hits, compiled = train(tmp_path, "-c", script)
        assert hits == "(2, 0)"  # forward and backward pass
        assert compiled == packed


def test_a_script_trains_with_the_kernels_that_were_exported(export, store_run, tmp_path):
    """`autotune exec` hands them to the command's process."""
    command = {
        "argv": [sys.executable, "train.py"],
        "bindings": [["batch_size", "--batch-size"]],
        "output_flags": [],
    }
    store_run("train.py", SCRIPT + COUNT, command=command)
    status, _, err = export()
    assert status == 0, err
    words = ("-m", "autotune", "exec", "--plan", "plan.yaml", "--", sys.executable, "train.py")
    hits, compiled = train(tmp_path, *words, "--steps", "1")
    assert json.loads(hits.replace("(", "[").replace(")", "]"))[1] == 0
    assert compiled == packed_libraries(tmp_path / "plan.kernels")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": {"compile_mode": "off"}}, "the plan has compile_mode=off"),
        (
            {"hardware": {"device_name": "NVIDIA H200"}},
            "was measured with device NVIDIA H200 (here it is ",
        ),
        (
            {"hardware": {"versions": {"torch": "2.7.0"}}},
            "was measured with torch 2.7.0 (here it is ",
        ),
    ],
)
def test_kernels_that_cannot_be_made_here_are_refused(changes, why, export, store_run, tmp_path):
    """The message says which, and nothing is written."""
    store_run("model.py", TINY, **changes)
    status, _, err = export()
    assert status == 2
    assert why in err
    assert not (tmp_path / "plan.yaml").exists()
    assert not (tmp_path / "plan.kernels").exists()


def test_other_tools_have_no_kernels(export, store_run):
    """Their trainings do not read them."""
    store_run("model.py", TINY)
    status, _, err = export("--for", "accelerate")
    assert status == 2
    assert "leave one of them out" in err
