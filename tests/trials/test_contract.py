"""What a workload may do wrong, and the message it gets."""

import sys

import pytest

from autotune.errors import WorkloadError
from autotune.trials.result import Outcome
from autotune.trials.workload import load_workload

IMPORT_ERRORS = {
    "syntax": ("def build_model(:\n", "SyntaxError"),
    "exception": ("1 / 0\n", "ZeroDivisionError"),
    "exit": ("import sys\nsys.exit(3)\n", "called sys.exit(3)"),
}


@pytest.mark.parametrize("case", IMPORT_ERRORS)
def test_a_file_that_does_not_import_shows_its_own_lines(case, write_workload):
    """The traceback starts at the user's file; none of our frames are in it."""
    source, words = IMPORT_ERRORS[case]
    path = write_workload(base=source)
    with pytest.raises(WorkloadError, match="import") as caught:
        load_workload(path)
    assert words in str(caught.value)
    assert str(path) in caught.value.user_traceback
    assert "trials/workload.py" not in caught.value.user_traceback


CONTRACT = {
    "missing": ("del build_model", r"defines no function build_model"),
    "misnamed": ("make_model = build_model; del build_model", r"did you mean 'make_model'\?"),
    "not_callable": (
        "compute_loss = 3",
        "compute_loss is a value of type int; it must be a function",
    ),
    "batch_zero": ("BATCH_SIZE = 0", "BATCH_SIZE is 0; it must be a positive integer"),
    "batch_text": ("BATCH_SIZE = '8'", "BATCH_SIZE is '8'"),
    "knobs_list": ("KNOBS = ['a']", "KNOBS is a value of type list; write it like"),
    "knobs_values": ("KNOBS = {'a': 3}", r"KNOBS\['a'\] is 3; it must be a list"),
    "knobs_clash": ("KNOBS = {'precision': ['x']}", "a knob of autotune's own"),
}


@pytest.mark.parametrize("case", CONTRACT)
def test_a_broken_contract_names_the_rule(case, write_workload):
    """Each message holds the value and the rule."""
    extra, words = CONTRACT[case]
    with pytest.raises(WorkloadError, match=words):
        load_workload(write_workload(extra))


RUNNING = {
    "no_module": ("def build_model(): return 3", "must return a torch.nn.Module"),
    "loss_float": (
        "def compute_loss(m, b): return 0.5",
        "compute_loss returned a value of type float",
    ),
    "loss_shape": ("def compute_loss(m, b): return m(b[0])", r"shape \(4, 3\).*mean"),
    "loss_detached": (
        "def compute_loss(m, b): return m(b[0]).mean().detach()",
        "the loss has no gradient",
    ),
    "empty_dataset": ("def build_dataset(): return Rows(0)", "the dataset is empty"),
    "small_dataset": ("def build_dataset(): return Rows(2)", "has 2 samples.*BATCH_SIZE = 2"),
    "no_optimizer": ("def build_optimizer(p): return None", "must return a torch.optim.Optimizer"),
    "other_batch": (
        "def build_dataloader(data, **kw): return torch.utils.data.DataLoader(data, batch_size=2)",
        "asked for batch_size=4 and made 2",
    ),
    "other_workers": (
        """
        def build_dataloader(data, num_workers, **kw):
            return torch.utils.data.DataLoader(data, num_workers=2, **kw)
        """,
        "asked for num_workers=0 and made 2",
    ),
    "blocks": ("def blocks(model): return [nn.Linear(1, 1)]", "inside the model"),
}


@pytest.mark.parametrize("case", RUNNING)
def test_what_only_running_shows_is_the_users_error_too(case, write_workload, run_plan):
    """Such a trial crashes with a message for the user, marked as theirs."""
    extra, words = RUNNING[case]
    values = {"activation_checkpointing": "full"} if case == "blocks" else {}
    result = run_plan(write_workload(extra), values)
    assert result.outcome is Outcome.CRASH
    assert result.user_error
    with pytest.raises(WorkloadError, match=words):
        raise WorkloadError(result.error or "")


def test_a_nan_loss_is_diverged(write_workload, run_plan):
    """The first step already says so."""
    path = write_workload("def compute_loss(m, b): return m(b[0]).mean() * float('nan')")
    result = run_plan(path)
    assert result.outcome is Outcome.DIVERGED
    assert result.user_error


def test_an_exception_keeps_the_users_traceback(write_workload, run_plan):
    """It starts at the user's first line, with their message."""
    path = write_workload(
        """
        def helper(x):
            raise ValueError("my mistake")

        def compute_loss(model, batch):
            return helper(batch)
        """
    )
    result = run_plan(path)
    assert result.error == "ValueError: my mistake"
    lines = (result.traceback or "").splitlines()
    assert str(path) in lines[1]
    assert "helper(batch)" in (result.traceback or "")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_raises_is_a_crash_with_its_reason(workers, write_workload, run_plan):
    """In this process and in a worker process alike."""
    path = write_workload(
        """
        class Broken(Rows):
            def __getitem__(self, index):
                raise KeyError("no such row")

        def build_dataset():
            return Broken()
        """
    )
    result = run_plan(path, {"workers": workers})
    assert result.outcome is Outcome.CRASH
    assert result.user_error
    assert "no such row" in (result.traceback or "")


def test_sys_exit_in_a_step_is_a_crash(write_workload, run_plan):
    """It ends the trial, not the process that runs it."""
    result = run_plan(write_workload("def compute_loss(m, b): raise SystemExit(7)"))
    assert result.outcome is Outcome.CRASH
    assert result.error == "the workload called sys.exit(7)"


def test_relative_paths_start_in_the_users_directory(write_workload, run_plan, tmp_path):
    """Where the command was typed, not where model.py is."""
    (tmp_path / "size.txt").write_text("64")
    path = write_workload(
        """
        from pathlib import Path

        def build_dataset():
            return Rows(int(Path("size.txt").read_text()))
        """
    )
    assert run_plan(path).outcome is Outcome.OK


def test_modules_beside_the_workload_can_be_imported(write_workload, run_plan, tmp_path):
    """As with `python model.py`."""
    (tmp_path / "my_layers_beside.py").write_text("WIDTH = 16\n")
    path = write_workload("from my_layers_beside import WIDTH")
    assert run_plan(path).outcome is Outcome.OK


def test_an_iterable_dataset_works(write_workload, run_plan):
    """No length, no sampler."""
    path = write_workload(
        """
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                rows = Rows()
                return (rows[i] for i in range(64))

        def build_dataset():
            return Stream()
        """
    )
    assert run_plan(path).outcome is Outcome.OK


def test_an_empty_stream_says_so(write_workload, run_plan):
    """Instead of asking it for ever."""
    path = write_workload(
        """
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(())

        def build_dataset():
            return Stream()
        """
    )
    result = run_plan(path)
    assert "gave no batch" in (result.error or "")
    assert result.user_error


def test_a_stream_that_ends_for_good_says_so(write_workload, run_plan):
    """Training goes on for epochs; the first one had its samples."""
    path = write_workload(
        """
        class Stream(torch.utils.data.IterableDataset):
            def __init__(self):
                self.samples = ((torch.rand(16), torch.tensor(0)) for _ in range(9))

            def __iter__(self):
                return self.samples

        def build_dataset():
            return Stream()
        """
    )
    result = run_plan(path)
    assert "read once more" in (result.error or "")
    assert result.user_error


def test_a_loader_worker_that_is_killed_is_a_crash(write_workload, run_plan):
    """As the kernel does when memory runs out; the trial ends and says which part died."""
    path = write_workload(
        """
        import os, signal

        class Deadly(Rows):
            def __getitem__(self, index):
                os.kill(os.getpid(), signal.SIGKILL)

        def build_dataset():
            return Deadly()
        """
    )
    result = run_plan(path, {"workers": 1})
    assert result.outcome is Outcome.CRASH
    assert "DataLoader worker" in (result.error or "")


def test_a_workload_sees_its_own_name_where_it_looks_for_options(write_workload):
    """The arguments of the process are ours, and no parser of the user's knows them."""
    before = list(sys.argv)
    path = write_workload(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', default=3)\nOPTIONS = parser.parse_args()"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ours.py", "--socket", "6"])
        load_workload(path)
        assert sys.argv == ["ours.py", "--socket", "6"]
    assert sys.argv == before
