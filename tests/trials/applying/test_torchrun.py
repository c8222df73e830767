"""`autotune.apply` under torchrun, and plans made for another number of ranks."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import autotune
from autotune.errors import PlanError
from autotune.search_space.plan import Plan
from autotune.trials.applying.batch import fit_ranks

SCRIPT = """
import sys
import torch
import autotune

torch.set_num_threads(1)
plan = autotune.load_plan("plan.yaml")
with autotune.apply(plan, workload=sys.argv[1]) as step:
    for batch in step.loader:
        loss = step(batch)
    whole = [p.full_tensor() for p in step.model.parameters()]
    torch.save((len(step.loader), [p.detach() for p in whole]), f"rank-{sys.argv[2]}.pt")
"""
FAILS = SCRIPT + "    raise RuntimeError('on both ranks')"
LAUNCH = """
import atexit, os, runpy, sys
from pathlib import Path
import torch.distributed as dist
sys.argv += [os.environ["RANK"]]
told = Path(f"group-{os.environ['RANK']}")
atexit.register(lambda: told.write_text("open" if dist.is_initialized() else "ended"))
runpy.run_path("train.py", run_name="__main__")
"""
TWO = Plan.of({"batch_size": 4, "accumulation": 8, "precision": "bf16"})


def torchrun(folder, script, *args):
    """Start `script` on two ranks by a launcher that tells what became of the process group."""
    (folder / "train.py").write_text(script)
    (folder / "launch.py").write_text(LAUNCH)
    (folder / "plan.yaml").write_text("ranks: 2\nplan:\n  sharding: fsdp_zero2\n")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "launch.py", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_script_under_torchrun_trains_the_plan_on_all_ranks(tmp_path, write_workload):
    """Each rank gets half of the samples, and both end with the same model."""
    ended = torchrun(tmp_path, SCRIPT, str(write_workload()))
    assert ended.returncode == 0, ended.stderr
    (batches, one), (_, two) = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert batches == 64 // 4 // 2
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    # Threads of an open group abort a process that ends, now and then.
    assert [(tmp_path / f"group-{rank}").read_text() for rank in range(2)] == ["ended"] * 2


def test_a_script_that_fails_does_not_wait_for_its_peers(tmp_path, write_workload):
    """They may be in a collective that it never enters."""
    ended = torchrun(tmp_path, FAILS, str(write_workload()))
    assert "RuntimeError: on both ranks" in ended.stderr
    # The rank that is a moment later may be stopped by torchrun before it can tell.
    assert {told.read_text() for told in tmp_path.glob("group-*")} == {"open"}


def test_a_plan_for_other_ranks_is_refused(write_workload, tmp_path):
    """With the command that has them; without GLOBAL_BATCH_SIZE nothing says how to adjust it."""
    (tmp_path / "plan.yaml").write_text("ranks: 4\nplan:\n  precision: bf16\n")
    plan = autotune.load_plan(tmp_path / "plan.yaml")
    words = "made for 4 ranks and this is 1: .*torchrun --nproc-per-node 4"
    with pytest.raises(PlanError, match=words):
        autotune.apply(plan, workload=write_workload())


def test_the_global_batch_says_how_to_adjust_a_plan():
    """Half the ranks accumulate twice as often; the user is told."""
    with pytest.warns(UserWarning, match=r"accumulation is 16 instead of 8.*GLOBAL_BATCH_SIZE=64"):
        fitted = fit_ranks(TWO, 2, 1, 64)
    assert fitted.diff(TWO) == {"accumulation": (16, 8)}


def test_an_adjusted_plan_trains_on_one_device(write_workload, tmp_path):
    """What only several ranks have is left aside, and its precision stays."""
    (tmp_path / "plan.yaml").write_text(
        "ranks: 2\nplan:\n  sharding: fsdp_zero3\n  precision: bf16\n  accumulation: 2\n"
    )
    plan = autotune.load_plan(tmp_path / "plan.yaml")
    path = write_workload("GLOBAL_BATCH_SIZE = 16")
    with pytest.warns(UserWarning, match="accumulation is 4 instead of 2"):
        step = autotune.apply(plan, workload=path)
    with step:
        step(next(iter(step.loader)))
        assert step.accumulation == 4
        with step.autocast():
            assert step.model(torch.randn(2, 16)).dtype is torch.bfloat16


def test_a_global_batch_that_does_not_divide_is_refused():
    """Three ranks cannot share 64 samples by fours."""
    with pytest.raises(PlanError, match="batch_size=4 on each of them does not divide"):
        fit_ranks(TWO, 2, 3, 64)


@pytest.mark.parametrize("made_for", [None, 2])
def test_a_plan_for_these_ranks_is_left_alone(made_for):
    """As is one that does not say for how many it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_ranks(TWO, made_for, 2, None) is TWO
