"""`autotune.apply`: the public API that users train with."""

import types

import pytest
import torch
from torch import nn

import autotune
from autotune.errors import PlanError
from autotune.search_space.plan import Plan


def test_a_short_plan_takes_the_batch_of_a_small_dataset(write_workload):
    """As `measure` does, where the workload names none."""
    path = write_workload(
        """
        del BATCH_SIZE

        def build_dataset():
            return Rows(20)
        """
    )
    with autotune.apply(Plan.of({"precision": "bf16"}), workload=path) as step:
        assert step.plan["batch_size"] == 20


def test_the_public_api_trains(write_workload):
    """`apply` needs the file and the plan; the loop is the user's."""
    path = write_workload()
    with autotune.apply(Plan.of({"precision": "bf16"}), workload=path) as step:
        losses = [step(batch).item() for _ in range(20) for batch in step.loader]
    assert losses[-1] < losses[0]
    assert len(next(iter(step.loader))[0]) == 4  # BATCH_SIZE of the workload


def test_the_parts_make_the_same_step(write_workload):
    """A loop of one's own by parts trains to the parameters of the whole step."""
    path = write_workload()
    plan = Plan.of({"precision": "bf16", "batch_size": 4})
    with autotune.apply(plan, workload=path) as whole:
        for batch in whole.loader:
            whole(batch)
    with autotune.apply(plan, workload=path) as parts:
        for batch in parts.loader:
            x, y = parts.move(batch)
            with parts.autocast():
                loss = nn.functional.cross_entropy(parts.model(x), y)
            parts.backward(loss)
            parts.update()
    pairs = zip(whole.model.parameters(), parts.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"precision": "bf16"}, 16), ({"batch_size": 32}, 2), ({"accumulation": 16}, 16)],
)
def test_a_plan_keeps_the_global_batch(values, expected, write_workload):
    """Whatever it leaves out: each step of the optimizer is on GLOBAL_BATCH_SIZE samples."""
    path = write_workload("GLOBAL_BATCH_SIZE = 64")
    with autotune.apply(Plan.of(values), workload=path) as step:
        assert step.accumulation == expected


def test_a_batch_that_nobody_names_divides_the_global_one(write_workload):
    """32 would not divide 100."""
    path = write_workload(
        "GLOBAL_BATCH_SIZE = 100\ndel BATCH_SIZE\ndef build_dataset(): return Rows(200)"
    )
    with autotune.apply(Plan.of({}), workload=path) as step:
        assert (step.plan["batch_size"], step.accumulation) == (25, 4)


def test_a_module_of_no_file_is_a_workload(write_workload):
    """Such as what is typed into a notebook."""
    typed = types.ModuleType("typed")
    exec(write_workload("").read_text(), vars(typed))  # what a notebook does
    with autotune.apply(Plan.of({}), workload=typed) as step:
        step(next(iter(step.loader)))


def test_the_workload_sees_the_arguments_of_the_users_script(write_workload, monkeypatch):
    """Where the user trains with `apply`, they are meant for both."""
    monkeypatch.setattr("sys.argv", ["train.py", "--width", "512"])
    path = write_workload("import sys\nassert sys.argv[1:] == ['--width', '512'], sys.argv")
    with autotune.apply(Plan.of({}), workload=path):
        pass


@pytest.mark.parametrize(
    ("values", "words"),
    [({"batch_size": 5}, "does not divide"), ({"accumulation": 2}, "it becomes 16")],
)
def test_a_plan_that_does_not_keep_the_global_batch_is_refused(values, words, write_workload):
    """It would train on other samples than the workload says."""
    with pytest.raises(PlanError, match=words):
        autotune.apply(Plan.of(values), workload=write_workload("GLOBAL_BATCH_SIZE = 64"))


def test_a_plan_with_an_unknown_knob_is_refused(write_workload):
    """With the nearest one."""
    with pytest.raises(PlanError, match=r"'widht'.*did you mean 'width'"):
        autotune.apply(Plan.of({"widht": 3}), workload=write_workload("KNOBS = {'width': [1, 2]}"))
