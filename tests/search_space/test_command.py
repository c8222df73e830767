"""A command line: its script, the arguments that a plan sets, and those that name folders."""

import shlex
from pathlib import Path

import pytest

from autotune.errors import PlanError
from autotune.search_space.command import Command, parse_binding
from autotune.search_space.plan import Plan


def command(line: str, **options) -> Command:
    return Command(argv=tuple(line.split()), **options)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("python -u src/train.py", "src/train.py"),
        ("torchrun --nproc-per-node 2 train.py -b 8", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("python -m package.train --lr 1", "package.train"),
        ("accelerate launch train.py", "train.py"),
        ("./train", "./train"),
    ],
)
def test_script_is_what_the_command_runs(line, script):
    assert command(line).script == script


@pytest.mark.parametrize("spelled", ["--batch-size 32", "--batch-size=32"])
def test_plan_sets_a_bound_argument_as_it_was_typed(spelled):
    one = command(f"python train.py {spelled} --lr 1").bound("batch_size", "--batch-size")
    assert one.value_of("--batch-size") == "32"
    changed = " ".join(one.under(Plan.of({"batch_size": 64, "workers": 2})))
    assert changed == f"python train.py {spelled.replace('32', '64')} --lr 1"


def test_bound_argument_that_was_not_typed_is_added():
    one = command("python train.py").bound("batch_size", "--batch-size")
    assert one.under(Plan.of({"batch_size": 64})) == ("python", "train.py", "--batch-size=64")
    assert one.under(Plan.of({"workers": 1})) == ("python", "train.py")
    short = command("python train.py").bound("batch_size", "-b")
    assert short.under(Plan.of({"batch_size": 64})) == ("python", "train.py", "-b", "64")


def test_dotted_arguments_are_known_by_their_last_part():
    line = "python train.py train.batch_size=8 --trainer.batch_size=8 valid.batch_size=8 --bs=8"
    one = command(f"{line} --data.batch_size 8")
    found = ["train.batch_size", "--trainer.batch_size", "--data.batch_size", "--model.batch_size"]
    assert one.named_like(["--batch_size", "-b"], known=["--model.batch_size", "-b"]) == found


@pytest.mark.parametrize(
    ("line", "program", "gets"),
    [
        ("python src/train.py --lr 1", "src/train.py", True),
        ("python -m package.train", "/home/me/package/train.py", True),
        ("python -m package", "/home/me/package/__main__.py", True),
        ("train --lr 1", "/usr/bin/train", True),
        ("bash train.sh", "train.py", False),
        ("bash -c 'python train.py'", "/home/me/package/train.py", False),
    ],
)
def test_program_started_by_a_shell_script_is_not_what_the_command_runs(line, program, gets):
    assert Command(argv=tuple(shlex.split(line))).runs(program) is gets


def test_arguments_that_name_folders_are_led_elsewhere():
    one = command("python train.py --output_dir /data/out --to x", output_flags=("--to", "--log"))
    led = one.writing_below(Path("/scratch"), one.argv)
    assert led == (
        *("python", "train.py", "--output_dir", "/scratch/out", "--to", "x"),
        "--log=/scratch/output",
    )


@pytest.mark.parametrize("argument", ["--batch-size", "-b", "train.batch_size", "+data.batch"])
def test_binding_is_read(argument):
    assert parse_binding(f"batch_size={argument}") == ("batch_size", argument)


@pytest.mark.parametrize("text", ["batch_size", "batch_size=", "batch_size=32", "workers=--w"])
def test_binding_in_another_form_is_refused(text):
    with pytest.raises(PlanError, match="KNOB=ARGUMENT"):
        parse_binding(text)
