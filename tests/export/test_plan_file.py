import json
import resource
import tomllib
from dataclasses import replace

import pytest
import yaml

import autotune
from autotune.errors import PlanError
from autotune.export.plan_file import (
    PlanFile,
    check_writable,
    dump_plan,
    load_plan_file,
    write_plan_file,
)
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures

BASELINE = Plan.of({"compile_mode": "off", "precision": "fp32", "workers": 0, "attention": "sdpa"})
WINNER = PlanFile(
    plan=Plan.of({"compile_mode": "off", "precision": "bf16", "workers": 0, "attention": "flex"}),
    ranks=4,
    own=PlanFigures(throughput=12_345.6, memory_bytes=3 * 2**30, train_s=820.5, start_s=10.5),
    speedup=Interval(ratio=2.13, low=2.1, high=2.15),
    confirmed=True,
    how="3 fresh processes each",
    baseline=BASELINE,
    baseline_figures=PlanFigures(throughput=5_796.1, train_s=1726.1, start_s=0.8),
    changes={"precision": "tensor cores: 1.9x"},
    remarks=("the batch is the same",),
    objective={"name": "time-to-train", "train_samples": 10_000_000},
    workload_path="/home/ada/model.py",
    workload_hash="0123456789ab",
    hardware={"device_name": "NVIDIA H200", "capability": [9, 0]},
    versions={"torch": "2.13.0"},
)


@pytest.fixture
def hand_written(tmp_path):
    def write(text, name="plan.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json", "toml"])
def test_round_trip(tmp_path, suffix):
    """What is written in any of the formats is read back whole, evidence included."""
    path = tmp_path / f"plan.{suffix}"
    write_plan_file(WINNER, path)
    assert load_plan_file(path) == WINNER


@pytest.mark.parametrize("suffix", ["yaml", "json", "toml"])
def test_round_trip_of_a_bare_plan(tmp_path, suffix):
    """A plan without any evidence is read back without any: unknown is left out, not zero."""
    path = tmp_path / f"plan.{suffix}"
    write_plan_file(PlanFile(plan=Plan.of({"precision": "bf16"})), path)
    assert load_plan_file(path) == PlanFile(plan=Plan.of({"precision": "bf16"}))


def test_other_readers_agree():
    """Plain YAML, JSON and TOML readers see the same values: `off` stays a word in all."""
    readers = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}
    seen = [read(dump_plan(WINNER, name)) for name, read in readers.items()]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["plan"] == {"compile_mode": "off", "precision": "bf16", "workers": 0}
    assert seen[0]["user_knobs"] == {"attention": "flex"}


def test_header_says_what_it_gave_and_how_to_use_it():
    """The comment has the speed-up with its interval, both speeds and the code to train with."""
    text = dump_plan(WINNER, "yaml", "fast.yaml")
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert "model.py on NVIDIA H200" in header
    assert "2.13 times the speed of the baseline (95 % interval 2.10 to 2.15)" in header
    assert "12,345.6 samples/s; the baseline reaches 5,796.1" in header
    assert 'plan = autotune.load_plan("fast.yaml")' in header
    assert "the batch is the same" in header
    assert "Objective: the least time to train on 10M samples" in header


def test_header_of_a_kept_baseline():
    """A file that holds the baseline says so instead of boasting with a ratio."""
    kept = PlanFile(plan=BASELINE, baseline=BASELINE, speedup=Interval(ratio=1.0))
    assert "keep your own configuration" in dump_plan(kept)
    assert "times the speed" not in dump_plan(kept)


def test_a_remark_of_several_lines_stays_a_comment(tmp_path):
    """Text with line breaks in it cannot leave the header and become a setting."""
    path = tmp_path / "plan.yaml"
    write_plan_file(PlanFile(plan=BASELINE, remarks=("first\nprecision: fp8",)), path)
    assert load_plan_file(path).plan == BASELINE


def test_hand_written_partial_file(hand_written):
    """One knob is a plan file; `off` is compile_mode's value, not a boolean."""
    path = hand_written("plan:\n  compile_mode: off\n  pin_memory: true\n  batch_size: 48\n")
    expected = Plan.of({"compile_mode": "off", "pin_memory": True, "batch_size": 48})
    assert load_plan_file(path) == PlanFile(plan=expected)
    assert autotune.load_plan(path) == expected


def test_user_knobs_are_part_of_the_plan(hand_written):
    """The workload's own knobs stand under user_knobs and arrive in the plan."""
    file = load_plan_file(hand_written("plan: {workers: 0}\nuser_knobs: {attention: flex}\n"))
    assert file.plan == Plan.of({"workers": 0, "attention": "flex"})
    assert file.user_knobs == {"attention": "flex"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plan: {precison: bf16}", "unknown knob 'precison'; did you mean 'precision'?"),
        ("plan: {precison: bf16}", "write a knob of the workload's own under user_knobs"),
        ("plan: {}\nobjective: {name: fast}", "time-to-quality) and what it needs"),
        ("plan: {}\nobjective: {name: time-to-train}", "give its name"),
        ("plan: {precision: bf61}", "precision=bf61 is not possible; did you mean 'bf16'?"),
        ("plan: {batch_size: 0}", "batch_size=0 is not possible; use a whole number from 1"),
        ("plan: {workers: -1}", "workers=-1 is not possible; use a whole number from 0"),
        ("plan: {workers: true}", "workers=true is not possible"),
        ("plan: {accumulation: 1.5}", "accumulation=1.5 is not possible"),
        ("plan: {}\nuser_knobs: {precision: bf16}", "write it under plan"),
        ("plan: {}\nuser_knobs: {attention: [a, b]}", "attention is ['a', 'b']"),
        ("plan: {}\nuser_knob: {}", "unknown section 'user_knob'; did you mean 'user_knobs'?"),
        ("plan: fast", "plan is 'fast'"),
        ("plan: {}\nresult: {throughput: fast}", "throughput is 'fast'; it must be a number"),
        ("precision: bf16", "no `plan:` section"),
        ("", "no `plan:` section"),
        ("plan: {}\nschema_version: 99", "schema_version 99, this autotune reads 1; upgrade"),
        ("plan: {}\nschema_version: one", "leave schema_version out"),
        ("plan: [", "it is not YAML"),
        ("baseline: {plan: {precision: fp23}}\nplan: {}", "did you mean 'fp32'?"),
    ],
)
def test_what_makes_no_sense_is_refused(hand_written, text, said):
    """Each mistake is named with the file, the value, and the nearest valid one or the rule."""
    path = hand_written(text)
    with pytest.raises(PlanError) as raised:
        load_plan_file(path)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["plan.json", "plan.toml"])
def test_a_broken_file_names_its_format(hand_written, name):
    """Broken JSON and TOML are refused as such."""
    with pytest.raises(PlanError, match=f"it is not {name[5:].upper()}: "):
        load_plan_file(hand_written("plan = {", name))


def test_a_binary_file_is_refused(tmp_path):
    """Bytes that are no text are a message, not a traceback."""
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PlanError, match="it is not YAML"):
        load_plan_file(path)


def test_a_missing_file_says_how_to_get_one(tmp_path):
    """A plan file that is not there is a message with the command that writes one."""
    with pytest.raises(PlanError, match="autotune export RUN"):
        load_plan_file(tmp_path / "plan.yaml")


def test_an_unknown_suffix_names_the_nearest(tmp_path):
    """A suffix that stands for no format is refused with the nearest that does."""
    with pytest.raises(PlanError, match=r"did you mean '\.yaml'\?"):
        load_plan_file(tmp_path / "plan.yalm")


def test_an_unknown_format_names_the_nearest(tmp_path):
    """`--format tmol` is refused with the nearest format."""
    with pytest.raises(PlanError, match=r"unknown format 'tmol'; did you mean 'toml'\?"):
        check_writable(tmp_path / "plan", "tmol")


def test_format_by_name_wins_over_suffix(tmp_path):
    """A file of any name can be written when its format is named."""
    path = tmp_path / "plan.conf"
    write_plan_file(WINNER, path, "json")
    assert json.loads(path.read_text())["plan"]["precision"] == "bf16"


def test_a_file_that_is_no_plan_is_left_alone(tmp_path):
    """A user's own file under the same name is neither overwritten nor lost, unless asked."""
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 0.1\n")
    with pytest.raises(PlanError, match="is not a plan file, so it was left alone"):
        write_plan_file(WINNER, path)
    assert path.read_text() == "learning_rate: 0.1\n"
    write_plan_file(WINNER, path, force=True)
    assert load_plan_file(path) == WINNER


def test_an_older_plan_file_is_replaced_whole(tmp_path):
    """A second run's plan takes the place of the first's, and no half-written file stays."""
    path = tmp_path / "plan.yaml"
    write_plan_file(WINNER, path)
    write_plan_file(PlanFile(plan=BASELINE), path)
    assert load_plan_file(path) == PlanFile(plan=BASELINE)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


def test_a_linked_plan_file_stays_a_link(tmp_path):
    """Writing through a link changes the file behind it."""
    link, target = tmp_path / "plan.yaml", tmp_path / "kept" / "plan.yaml"
    target.parent.mkdir()
    link.symlink_to(target)
    write_plan_file(WINNER, link)
    assert link.is_symlink()
    assert load_plan_file(target) == WINNER


def test_a_write_that_fails_is_a_message(tmp_path):
    """A write that fails names file and reason; the older plan stays whole, nothing else does."""
    path = tmp_path / "plan.yaml"
    write_plan_file(PlanFile(plan=BASELINE), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(PlanError, match=r"cannot write .*plan.yaml: File too large"):
            write_plan_file(WINNER, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_plan_file(path) == PlanFile(plan=BASELINE)
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_a_message(tmp_path):
    """A folder that is not there is found before anything is measured."""
    with pytest.raises(PlanError, match="there is no folder"):
        check_writable(tmp_path / "nowhere" / "plan.yaml")


def test_a_folder_is_not_a_plan_file(tmp_path):
    """A folder under the plan's name is refused with force, too."""
    (tmp_path / "plan.yaml").mkdir()
    with pytest.raises(PlanError, match="it is a folder"):
        check_writable(tmp_path / "plan.yaml", force=True)


def test_the_ranks_travel_with_the_plan(tmp_path):
    """`apply` needs them, and the plan is the same plan with and without."""
    write_plan_file(WINNER, tmp_path / "plan.yaml")
    plan = autotune.load_plan(tmp_path / "plan.yaml")
    assert plan.ranks == 4
    assert plan == WINNER.plan


def test_a_plan_for_several_ranks_says_how_to_launch_it():
    """One for a single rank needs no launcher."""
    assert "torchrun --nproc-per-node 4 train.py" in dump_plan(WINNER)
    assert "torchrun" not in dump_plan(replace(WINNER, ranks=1))


@pytest.mark.parametrize("ranks", ["two", 0, True])
def test_ranks_are_a_positive_number(hand_written, ranks):
    """Anything else is refused with the rule."""
    path = hand_written(yaml.safe_dump({"ranks": ranks, "plan": {}}))
    with pytest.raises(PlanError, match=r"ranks is .*; it must be a positive integer"):
        load_plan_file(path)
