"""A command line: its script, the arguments that a plan sets, and those that name folders."""

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
    assert one.under(Plan.of({"batch_size": 64}))[-2:] == ("--batch-size", "64")
    assert one.under(Plan.of({"workers": 1})) == ("python", "train.py")


def test_arguments_that_name_folders_are_led_elsewhere():
    one = command("python train.py --output_dir /data/out --to x", output_flags=("--to", "--log"))
    led = one.writing_below(Path("/scratch"), one.argv)
    assert led == (
        *("python", "train.py", "--output_dir", "/scratch/out", "--to", "x"),
        *("--log", "/scratch/output"),
    )


def test_binding_is_read():
    assert parse_binding("batch_size=--batch-size") == ("batch_size", "--batch-size")


@pytest.mark.parametrize("text", ["batch_size", "batch_size=", "batch_size=32", "workers=--w"])
def test_binding_in_another_form_is_refused(text):
    with pytest.raises(PlanError, match="KNOB=ARGUMENT"):
        parse_binding(text)
