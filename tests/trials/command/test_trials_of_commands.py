"""Trials of a command: what is measured, what a plan changes, and what is left behind."""

import os
import re
import subprocess
import sys

import psutil
import pytest
import yaml

from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.result import Outcome


def losses(text: str) -> list[str]:
    return re.findall(r"loss \d+ \S+", text)


@pytest.fixture
def plain_losses(home):
    """The losses of the script by itself."""
    command = [sys.executable, "train.py", "--steps", "20"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    (home / "last.pt").write_text("an earlier training's")
    return losses(done.stdout)


def test_measured_training_is_the_scripts_own(trial, home, plain_losses, capfd):
    result = trial("train.py", "--batch-size", "8")
    assert result.outcome is Outcome.OK, result.traceback
    measured = result.measurement
    assert len(measured.windows) >= 2
    assert all(w.samples == 8 * w.steps for w in measured.windows)
    assert losses(capfd.readouterr().out)[: len(plain_losses)] == plain_losses
    assert (home / "last.pt").read_text() == "an earlier training's"
    assert sorted(p.name for p in home.iterdir()) == ["data", "last.pt", "train.py"]


def test_plan_reaches_the_script(trial, capfd, home):
    """Exact settings leave the losses as they are, others stay near."""
    text = (home / "train.py").read_text()
    probe = (
        "        step += 1\n        if step == 3:\n"
        "            print('seen', train.num_workers, train.prefetch_factor,"
        " optimizer.param_groups[0]['fused'], torch.get_num_threads(),"
        " type(model[0]).__name__, torch.is_autocast_enabled('cpu'), flush=True)\n"
    )
    (home / "train.py").write_text(text.replace("        step += 1\n", probe))
    plan = {"workers": 1, "prefetch": 4, "threads": 1, "optimizer_impl": "fused"}
    plan |= {"activation_checkpointing": "full"}
    result = trial("train.py", plan=plan)
    assert result.outcome is Outcome.OK, result.traceback
    out = capfd.readouterr().out
    assert "seen 1 4 True 1 CheckpointWrapper False" in out


def test_bf16_computes_in_16_bits_until_the_backward_pass(trial, home, capfd):
    text = (home / "train.py").read_text()
    text = text.replace(
        "        (loss / args.accum)",
        "        if step == 0: print('inside', model[3](torch.ones(1, 16)).dtype, loss.dtype)\n"
        "        (loss / args.accum)",
    ).replace(
        "        optimizer.step()",
        "        if step == 0: print('after', torch.is_autocast_enabled('cpu'), flush=True)\n"
        "        optimizer.step()",
    )
    (home / "train.py").write_text(text)
    assert trial("train.py", plan={"precision": "bf16"}).outcome is Outcome.OK
    out = capfd.readouterr().out
    assert "inside torch.bfloat16 torch.float32" in out
    assert "after False" in out


def test_threads_of_the_plan_stay_where_the_script_sets_others(trial, home, capfd):
    text = (home / "train.py").read_text()
    text = text.replace("step = 0\n", "torch.set_num_threads(3)\nstep = 0\n", 1)
    count = "        step += 1\n        print('threads', torch.get_num_threads(), flush=True)\n"
    (home / "train.py").write_text(text.replace("        step += 1\n", count))
    assert trial("train.py", plan={"threads": 1}).outcome is Outcome.OK
    assert set(re.findall(r"threads \d", capfd.readouterr().out)) == {"threads 1"}


def test_argument_that_leaves_the_batch_as_it_was_is_refused(trial):
    result = trial("train.py", plan={"batch_size": 16}, bindings=[("batch_size", "--steps")])
    assert result.outcome is Outcome.INVALID
    told = "--steps was set to 16, and the script's loader still gives batches of 8"
    assert told in result.error


def test_bound_argument_is_what_the_plan_says(trial):
    result = trial("train.py", plan={"batch_size": 16}, bindings=[("batch_size", "--batch-size")])
    assert all(w.samples == 16 * w.steps for w in result.measurement.windows)


def test_validation_and_saving_are_not_measured(trial, home):
    text = (home / "train.py").read_text()
    pause = "    model.eval()\n    import time; time.sleep(4)\n"
    (home / "train.py").write_text(text.replace("    model.eval()\n", pause))
    result = trial("train.py")
    assert max(w.seconds for w in result.measurement.windows) < 4


def test_time_for_other_work_than_training_is_told(trial, home):
    """Here after each third step, for much longer than steps take."""
    text = (home / "train.py").read_text()
    looks = (
        "            with torch.no_grad(): model(x)\n            import time; time.sleep(0.3)\n"
    )
    counted = "        step += 1\n"
    (home / "train.py").write_text(
        text.replace(counted, f"{counted}        if step % 3 == 0:\n{looks}")
    )
    measured = trial("train.py").measurement
    assert 0.3 < measured.other_work_share < 1.0


@pytest.mark.parametrize(
    ("failing", "outcome", "words"),
    [
        ("raise RuntimeError('DefaultCPUAllocator: out of memory')", Outcome.OOM, "memory"),
        ("raise ValueError('mine')", Outcome.CRASH, "ValueError: mine"),
        ("sys.exit(4)", Outcome.CRASH, "exit status 4 while it warmed up"),
    ],
)
def test_failure_is_told(trial, home, failing, outcome, words):
    text = (home / "train.py").read_text()
    step = f"        if step == 3: {failing}\n        optimizer.step()"
    (home / "train.py").write_text(text.replace("        optimizer.step()", step))
    result = trial("train.py")
    assert result.outcome is outcome
    assert words in result.error
    assert result.user_error or outcome is Outcome.OOM


def test_plan_that_cannot_be_applied_is_invalid(trial, home):
    text = (home / "train.py").read_text()
    (home / "train.py").write_text(text.replace("Block(), Block(), Block()", "Block()"))
    result = trial("train.py", plan={"activation_checkpointing": "full"})
    assert result.outcome is Outcome.INVALID
    assert "repeated blocks" in result.error


def test_nothing_that_the_command_started_is_left(trial, home):
    text = (home / "train.py").read_text()
    child = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    told = "open(args_of_test, 'w').write(str(child.pid))\n"
    told = told.replace("args_of_test", repr(str(home.parent / f"{home.name}-child")))
    (home / "train.py").write_text(child + told + text)
    trial("train.py")
    pid = int((home.parent / f"{home.name}-child").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_numerics_of_a_plan_are_compared_with_the_scripts_own(trial):
    result = trial("train.py", plan={"precision": "bf16"}, compare_with=Plan.of({}))
    assert result.numerics.passed, result.numerics.summary
    assert result.numerics.format == "bf16"
    gradients = result.numerics.deviations[1]
    assert 1e-4 < gradients.seen < gradients.allowed


def test_numerics_that_differ_are_noticed(trial, home):
    """Under its plan a model may compute something else, as this one does in 16 bits."""
    text = (home / "train.py").read_text()
    wrong = "torch.relu(self.inner(x)) * (3 if torch.is_autocast_enabled('cpu') else 1)"
    (home / "train.py").write_text(text.replace("torch.relu(self.inner(x))", wrong))
    result = trial("train.py", plan={"precision": "bf16"}, compare_with=Plan.of({}))
    assert not result.numerics.passed


# Draws other numbers in 16 bits, as attention does with another kernel.
DROPOUT = """
    def forward(self, x):
        is_half = torch.is_autocast_enabled('cpu')
        torch.rand(int(is_half))
        return x + torch.dropout(torch.relu(self.inner(x)), 0.3, True) * SCALE
"""


@pytest.mark.parametrize(("scale", "passes"), [("1", True), ("(5 if is_half else 1)", False)])
def test_dropout_that_draws_otherwise_is_held_against_another_draw(trial, home, scale, passes):
    text = (home / "train.py").read_text()
    before = "    def forward(self, x):\n        return x + torch.relu(self.inner(x))\n"
    assert before in text
    (home / "train.py").write_text(text.replace(before, DROPOUT.replace("SCALE", scale)))
    result = trial("train.py", plan={"precision": "bf16"}, compare_with=Plan.of({}))
    assert result.numerics.passed is passes, result.numerics.summary


def test_step_is_diagnosed(trial):
    request = DiagnosisRequest(flops_per_sample=1e4, brief=True)
    result = trial("train.py", plan={"batch_size": 8}, diagnosis=request)
    found = result.diagnosis
    assert found.bound is not None, found.unknown
    assert found.ops_per_step > 20
    parts = (found.shares.forward, found.shares.backward, found.shares.optimizer)
    assert min(parts) > 0
    assert found.one_thread_speedup > 0
    assert sum(parts) == pytest.approx(1 - found.shares.data, abs=0.01)
    assert found.took_s > 0


def test_training_that_is_too_slow_is_not_diagnosed(trial):
    result = trial("train.py", diagnosis=DiagnosisRequest(above=1e9))
    assert result.diagnosis is None


def test_training_under_a_profiler_of_its_own_is_measured(trial, home):
    text = (home / "train.py").read_text()
    own = "from torch.profiler import profile\nprofile().__enter__()\nstep = 0\n"
    (home / "train.py").write_text(text.replace("step = 0\n", own))
    result = trial("train.py", plan={"batch_size": 8}, diagnosis=DiagnosisRequest())
    assert result.measurement.throughput > 0
    assert "a profiler of your own" in result.diagnosis.unknown["everything"]


def test_model_that_the_script_compiles_is_compiled_as_without_hooks(trial, home, capfd):
    text = (home / "train.py").read_text()
    compiled = "model = torch.compile(model, backend='eager')\naverage = "
    counted = (
        "        step += 1\n        if step == 5:\n"
        "            from torch._dynamo.utils import counters\n"
        "            print('graphs', counters['stats']['unique_graphs'], flush=True)\n"
    )
    text = text.replace("average = ", compiled).replace("        step += 1\n", counted)
    (home / "train.py").write_text(text)
    plain = [sys.executable, "train.py", "--steps", "6"]
    done = subprocess.run(plain, cwd=home, capture_output=True, text=True, check=True)
    assert trial("train.py").outcome is Outcome.OK
    expected = re.findall(r"graphs \d+", done.stdout)
    assert expected
    assert re.findall(r"graphs \d+", capfd.readouterr().out) == expected


def test_optimizer_that_is_made_anew_goes_on_as_the_trainings(trial, home):
    text = (home / "train.py").read_text()
    again = "    model.train()\n    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    (home / "train.py").write_text(text.replace("    model.train()\n", again))
    result = trial("train.py")
    assert result.outcome is Outcome.OK, result.error


def test_exec_trains_with_a_plan_to_the_end(home, tmp_path):
    """Losses of further epochs and names in the state dict stay, although workers go on."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({"plan": {"activation_checkpointing": "full", "workers": 1}}))
    command = [sys.executable, "-m", "autotune.cli.main", "exec", "--plan", str(plan), "--"]
    script = [sys.executable, "train.py", "--steps", "120"]
    plain = subprocess.run(script, cwd=home, capture_output=True, text=True, check=True)
    tuned = subprocess.run(
        [*command, *script], cwd=home, capture_output=True, text=True, check=True, env=os.environ
    )
    assert tuned.stdout == plain.stdout
    assert "state" in tuned.stdout


def test_ranks_of_torchrun_train_under_the_plan(observe, trial, home):
    text = (home / "train.py").read_text()
    ddp = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    wrapped = "average = copy.deepcopy(model)\nmodel = nn.parallel.DistributedDataParallel(model)"
    text = text.replace("torch.manual_seed(0)\n", f"torch.manual_seed(0)\n{ddp}")
    (home / "train.py").write_text(text.replace("average = copy.deepcopy(model)", wrapped))
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    facts = observe(*words)
    assert facts.world_size == 2
    assert dict(facts.own_settings)["bucket_mb"] == 25
    result = trial(*words, plan={"precision": "bf16", "bucket_mb": 1})
    assert result.outcome is Outcome.OK, result.traceback
    assert all(w.samples == 2 * 8 * w.steps for w in result.measurement.windows)
