"""`autotune export` on a real store."""

from contextlib import closing
from functools import partial

import pytest

from autotune.export.frameworks import FRAMEWORKS
from autotune.export.plan_file import load_plan_file
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import NewRun, RunState, Winner
from autotune.storage.sql import open_store
from autotune.trials.result import Measurement, Outcome, Purpose, TrialResult

BASELINE = Plan.of({"precision": "fp32", "workers": 0})
FASTER = Plan.of({"precision": "bf16", "workers": 0})
SHARDED = Plan.of(
    {
        "batch_size": 8,
        "sharding": "fsdp_zero3",
        "memory_format": "channels_last",
        "attention": "flex",
    }
)


@pytest.fixture
def folder(tmp_path):
    """A working directory with a store: trial 1 the baseline, 2 faster, 3 without memory."""
    with closing(open_store(str(tmp_path / "autotune.db"))) as store:
        run = store.create_run(new_run(block_class="Encoder and Decoder", num_blocks=12))
        trials = [
            (BASELINE, ok(100.0)),
            (FASTER, ok(150.0)),
            (FASTER, oom()),
            (SHARDED, ok(120.0)),
        ]
        for number, (plan, result) in enumerate(trials, start=1):
            purpose = Purpose.BASELINE if number == 1 else Purpose.PRESET
            ranks = 2 if plan == SHARDED else 1
            store.start_trial(
                run.id, number, plan, purpose, "a reason", "trial.log", num_ranks=ranks
            )
            store.finish_trial(run.id, number, result, used_s=1.0)
    return tmp_path


@pytest.fixture
def concluded(folder):
    """The same, with a winner."""
    with closing(open_store(str(folder / "autotune.db"))) as store:
        store.finish_run(
            store.run("last").id, RunState.DONE, stop_reason="done", used_s=9.0, winner=winner()
        )
    return folder


def new_run(**facts):
    return NewRun(
        key="key",
        name="first",
        workload_path="/home/ada/model.py",
        workload_hash="0123456789ab",
        hardware={"device_name": "a processor", "versions": {"torch": "2.13.0"}},
        facts=facts,
        options={},
        baseline=BASELINE,
        budget_s=60.0,
        driver="host:1:1",
    )


def winner():
    return Winner(
        plan=FASTER,
        kept_baseline=False,
        confirmed=True,
        speedup=Interval(ratio=1.5, low=1.4, high=1.6),
        own=PlanFigures(throughput=150.0, memory_bytes=2**30),
        baseline=PlanFigures(throughput=100.0, memory_bytes=2**31),
        how="2 fresh processes each",
        changes={"precision": "less to move"},
    )


def ok(throughput):
    measured = Measurement(
        throughput=throughput,
        throughput_low=throughput - 1,
        throughput_high=throughput + 1,
        step_ms=10.0,
        step_ms_spread=0.01,
        data_wait_share=0.0,
        build_s=1.0,
        first_step_s=1.0,
        warm_up_s=1.0,
        measure_s=1.0,
        first_loss=2.0,
        last_loss=1.0,
        settled=True,
        peak_host_bytes=2**29,
    )
    return TrialResult(outcome=Outcome.OK, measurement=measured)


def oom():
    return TrialResult(outcome=Outcome.OOM, error="out of memory")


@pytest.fixture
def export(type_command):
    """Type `autotune export` and more; give status, stdout and stderr."""
    return partial(type_command, "autotune", "export")


def test_export_writes_the_winner(concluded, export):
    """The winner's file has its plan, its numbers, and where they were measured."""
    status, out, err = export("first", "-o", "fast.toml")
    assert (status, out) == (0, "written: fast.toml\n"), err
    file = load_plan_file(concluded / "fast.toml")
    assert (file.plan, file.baseline) == (FASTER, BASELINE)
    assert file.speedup == Interval(ratio=1.5, low=1.4, high=1.6)
    assert file.own == PlanFigures(throughput=150.0, memory_bytes=2**30)
    assert file.baseline_figures == PlanFigures(throughput=100.0, memory_bytes=2**31)
    assert file.confirmed
    assert file.changes == {"precision": "1.50 times (1.40 to 1.60): less to move"}
    assert file.verdict.startswith("CONFIRMED: 1.50 times as fast")
    assert (file.workload_path, file.workload_hash) == ("/home/ada/model.py", "0123456789ab")
    assert (file.hardware, file.versions) == ({"device_name": "a processor"}, {"torch": "2.13.0"})


def test_export_writes_a_trial(folder, export):
    """A trial's file has its speed against the baseline trial's, and says it is unconfirmed."""
    status, _, err = export("last", "--trial", "2", "-o", "plan", "--format", "json")
    assert status == 0, err
    (folder / "plan").rename(folder / "plan.json")
    file = load_plan_file(folder / "plan.json")
    assert (file.plan, file.speedup) == (FASTER, Interval(ratio=1.5))
    assert file.own == PlanFigures(throughput=150.0, memory_bytes=2**29)
    assert not file.confirmed
    assert file.how == "trial 2, measured once and not confirmed"


def test_export_writes_a_failed_trial(folder, export):
    """A plan that did not run can be exported to try it again; the file makes up no number."""
    status, _, err = export("last", "--trial", "3")
    assert status == 0, err
    file = load_plan_file(folder / "plan.yaml")
    assert (file.plan, file.own, file.speedup) == (FASTER, PlanFigures(), None)
    assert file.how == "trial 3 gave no measurement: oom"


def test_a_run_without_a_winner(folder, export):
    """Before a run concludes there is nothing to export, and the way out is named."""
    status, out, err = export("first")
    assert (status, out) == (2, "")
    assert "run first is running and has no winner" in err
    assert "--trial N" in err
    assert not (folder / "plan.yaml").exists()


def test_a_trial_that_is_not_there(folder, export):
    """An unknown trial is a usage error that says where to look."""
    status, _, err = export("first", "--trial", "9")
    assert status == 2
    assert "run first has no trial 9" in err
    assert "`autotune trials first` lists them" in err


def test_a_file_of_the_users_is_left_alone(concluded, export):
    """`-o` on a file that is not a plan file changes nothing, until --force asks for it."""
    path = concluded / "config.yaml"
    path.write_text("learning_rate: 0.1\n")
    assert export("first", "-o", "config.yaml")[0] == 2
    assert path.read_text() == "learning_rate: 0.1\n"
    assert export("first", "-o", "config.yaml", "--force")[0] == 0
    assert load_plan_file(path).plan == FASTER


@pytest.mark.parametrize("tool", FRAMEWORKS)
def test_export_for_another_tool(tool, concluded, export):
    """The file has the tool's usual name, the plan's results where it can, and may be renewed."""
    status, out, err = export("first", "--for", tool)
    assert status == 0, err
    path = concluded / FRAMEWORKS[tool].file_name
    assert out.startswith(f"written: {path.name}, for ")
    assert "bf16" in path.read_text() or "bfloat16" in path.read_text()
    if path.suffix != ".json":
        assert "1.50 times as fast as your baseline (95 % interval" in path.read_text()
        assert export("first", "--for", tool)[0] == 0


def test_what_a_tool_cannot_say_is_printed(folder, export):
    """With what to do in code, also for a trial's plan."""
    status, out, err = export("first", "--for", "deepspeed", "--trial", "4", "-o", "ds.json")
    assert status == 0, err
    assert "not in it" in out
    assert "  memory_format=channels_last: model.to(memory_format=torch.channels_last)" in out
    assert "  attention=flex: a knob of your own" in out
    assert "channels_last" not in (folder / "ds.json").read_text()


def test_the_facts_of_the_run_are_in_the_configuration(folder, export):
    """FSDP cuts the blocks that the run found."""
    status, _, err = export("first", "--for", "accelerate", "--trial", "4")
    assert status == 0, err
    text = (folder / "accelerate.yaml").read_text()
    assert "fsdp_transformer_layer_cls_to_wrap: Encoder,Decoder" in text
    assert "num_processes: 2" in text


def test_the_suffix_or_the_format_names_the_dialect(folder, export):
    """One that the tool does not read is refused, with those that it reads."""
    assert export("first", "--trial", "2", "--for", "torchtitan", "-o", "plan.toml")[0] == 0
    assert "[training]" in (folder / "plan.toml").read_text()
    status, _, err = export("first", "--trial", "2", "--for", "transformers", "-o", "args.toml")
    assert status == 2
    assert "args.toml ends in none of .yaml, .yml, .json" in err
    named = ("--for", "transformers", "-o", "args", "--format", "json")
    assert export("first", "--trial", "2", *named)[0] == 0
    assert (folder / "args").read_text().startswith("{")


def test_an_unknown_tool_is_told_with_the_nearest(folder, export):
    """And all that there are."""
    status, _, err = export("first", "--trial", "2", "--for", "acelerate")
    assert status == 2
    assert "--for acelerate: unknown tool; did you mean 'accelerate'?" in err
    assert "torchtitan" in err


def test_a_configuration_of_the_users_is_left_alone(concluded, export):
    """A file that autotune did not write, or cannot tell, needs --force."""
    path = concluded / "accelerate.yaml"
    path.write_text("distributed_type: 'NO'\n")
    status, _, err = export("first", "--for", "accelerate")
    assert status == 2
    assert "left alone" in err
    assert path.read_text() == "distributed_type: 'NO'\n"
    assert export("first", "--for", "accelerate", "--force")[0] == 0
    assert "mixed_precision: bf16" in path.read_text()
