"""What limits a step is told right, on workloads made for it, which are also run on GPUs.

No test reads a time: the causes differ by a factor, on a busy machine too.
"""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import nn

from autotune.search_space.bound import Bound
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import Diagnosis, DiagnosisRequest, FindingKind
from autotune.trials.profiling import diagnose as steps_of_a_diagnosis
from autotune.trials.profiling.measured import Measured
from autotune.trials.profiling.stalls import why_waiting
from autotune.trials.profiling.watch import uneven_weights
from autotune.trials.rank import run_trial
from autotune.trials.request import TrialRequest
from autotune.trials.result import (
    Kept,
    Measurement,
    Outcome,
    Phase,
    Purpose,
    TrialResult,
    measurement_from_dict,
)
from tests.trials.conftest import QUICK

BOUND = Path(__file__).parents[3] / "benchmarks" / "bound"


@pytest.fixture
def diagnosed(tmp_path, monkeypatch):
    """Measure and diagnose a workload; return the result."""
    monkeypatch.syspath_prepend(str(BOUND))

    def run(path, *, batch_size=4, asked=None, **values):
        request = TrialRequest(
            number=1,
            plan=Plan.of({"batch_size": batch_size, "threads": 1, **values}),
            purpose=Purpose.MEASURE,
            workload_path=str(path),
            working_dir=str(tmp_path),
            device_kind="cpu",
            protocol=QUICK,
            diagnosis=asked or DiagnosisRequest(),
        )
        monkeypatch.chdir(tmp_path)
        if asked is not None and asked.explain_graphs:
            # The compiler keeps state; a real trial has a process of its own, too.
            with ProcessPoolExecutor(1, get_context("forkserver")) as process:
                result = process.submit(_last_word, request.to_dict()).result()
        else:
            result = _last_word(request.to_dict())
        assert isinstance(result, TrialResult)
        assert result.outcome is Outcome.OK, result.traceback
        return result

    return run


def _last_word(request):
    os.chdir(request["working_dir"])
    *_, result = run_trial(TrialRequest.from_dict(request))
    return result


def line_of(file, text):
    """The number of the line that holds `text`."""
    lines = file.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("name", "batch_size", "bound"),
    [
        ("data", 4, Bound.DATA),
        ("launches", 4, Bound.LAUNCHES),
        ("arithmetic", 512, Bound.ARITHMETIC),
        ("memory_bandwidth", 64, Bound.MEMORY_BANDWIDTH),
    ],
)
def test_the_bound_is_told(diagnosed, name, batch_size, bound):
    """A step made to be bound by one cause is diagnosed so, with evidence and something to do."""
    diagnosis = diagnosed(BOUND / f"{name}.py", batch_size=batch_size).diagnosis
    assert diagnosis.bound is bound, diagnosis.evidence
    assert diagnosis.evidence
    assert diagnosis.advice


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_is_looked_at_where_there_are_more(diagnosed, threads):
    """In the same process, which has the plan's threads back afterwards."""
    found = diagnosed(BOUND / "arithmetic.py", threads=threads).diagnosis
    assert torch.get_num_threads() == threads
    assert (found.one_thread_speedup is None) == (threads == 1)
    assert found.one_thread_speedup is None or found.one_thread_speedup > 0


def test_shares_add_up(diagnosed):
    """What is known of a step is all of it; what does not exist here is null, with a reason."""
    diagnosis = diagnosed(BOUND / "arithmetic.py", batch_size=512).diagnosis
    known = [
        diagnosis.shares.data,
        diagnosis.shares.forward,
        diagnosis.shares.backward,
        diagnosis.shares.optimizer,
    ]
    assert sum(known) == pytest.approx(1.0)
    for name in ("copy", "idle", "communication", "other"):
        assert getattr(diagnosis.shares, name) is None
        assert diagnosis.unknown[name]


def test_flops_are_those_of_the_matrix_products(diagnosed):
    """Forward and backward of three square layers: six products, but no gradient of the input."""
    diagnosis = diagnosed(BOUND / "arithmetic.py", batch_size=512).diagnosis
    assert diagnosis.flops_per_sample == (3 + 3 + 2) * 2 * 512**2
    assert diagnosis.mfu > 0.0


def test_the_utilisation_is_that_of_the_palm_paper():
    """46.2 % for 238.3 thousand tokens per second on 6144 chips of 275 TFLOP/s."""
    attention = 12 * 118 * 48 * 256 * 2048
    numbers = dict.fromkeys((field.name for field in fields(Measurement)), 0.5)
    measured = measurement_from_dict({**numbers, "throughput": 238_300.0, "windows": ()})
    palm = Measured(
        device=None, plan=None, model=None, accumulation=1, world_size=6144, measurement=measured
    )
    found = palm.utilisation(6 * 540.35e9 + attention, 275e12)
    assert found == pytest.approx(0.462, abs=5e-4)
    assert palm.utilisation(None, 275e12) is None


def test_recomputed_activations_are_not_model_flops(diagnosed, write_workload):
    """Checkpointing computes the forward pass twice, which the model's FLOPs do not count."""
    path = write_workload()
    plain = diagnosed(path).diagnosis.flops_per_sample
    again = diagnosed(path, activation_checkpointing="full").diagnosis.flops_per_sample
    # Three times the forward, where the first layer's input needs no gradient.
    assert plain < again <= plain + 2 * 16 * 16


def test_item_in_the_loss_is_found(diagnosed):
    """A host synchronisation is told with the user's file and line."""
    file = BOUND / "host_sync.py"
    (finding,) = diagnosed(file).diagnosis.findings
    assert finding.kind is FindingKind.HOST_SYNC
    assert Path(finding.file) == file
    assert finding.line == line_of(file, "# here")


ON_THE_HOST = """
from torch.nn.utils.rnn import pack_padded_sequence
def build_model():
    return nn.ModuleList([nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)])
def compute_loss(model, batch):
    x, y = batch
    packed = pack_padded_sequence(x.view(-1, 4, 4), torch.tensor([4, 3, 2, 1]), batch_first=True)
    _, (last, _) = model[0](packed)
    labels = nn.functional.one_hot(y, {classes})  # here
    return model[1](last[0]).mean() + labels.float().mean()
"""


@pytest.mark.parametrize(
    ("classes", "waits"), [("3", False), ("num_classes=3", False), ("", True)]
)
def test_what_is_read_on_a_cpu_alone_is_no_synchronisation(
    classes, waits, diagnosed, write_workload
):
    """Lengths of packed sequences are on the host anyway; classes are counted where not given."""
    extra = "def build_dataset(): return [(torch.randn(16), n % 3) for n in range(64)]\n"
    path = write_workload(extra + ON_THE_HOST.replace("{classes}", classes))
    found = [f for f in diagnosed(path).diagnosis.findings if f.kind is FindingKind.HOST_SYNC]
    assert [f.line for f in found] == [line_of(path, "# here")] * waits


def test_attention_by_hand_is_found(diagnosed):
    """On the line where the scores meet the values, with what replaces it."""
    file = BOUND / "attention.py"
    (finding,) = diagnosed(file).diagnosis.findings
    assert finding.kind is FindingKind.ATTENTION
    assert (Path(finding.file), finding.line) == (file, line_of(file, "# here"))
    assert "4 x 2 x 128 x 128 (0.5 MiB), 4 times in a step" in finding.what


def test_a_profiler_of_the_users_own_is_told(diagnosed, write_workload):
    """Ours would end it, so the parts of the step stay unknown; the rest is told."""
    source = """
    profiler = torch.autograd.profiler.profile()
    profiler.__enter__()
    """
    try:
        diagnosis = diagnosed(write_workload(source)).diagnosis
    finally:
        torch.autograd._disable_profiler()
    # A busy machine makes this small step wait for its loader, which is told as well.
    (finding,) = (f for f in diagnosis.findings if f.kind is FindingKind.ANTI_PATTERN)
    assert "profiler is on" in finding.what
    assert "of your own" in diagnosis.unknown["bound"]


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_a_print_in_forward_is_found_twice(diagnosed):
    """It is told as a print and, where graphs are looked at, as a graph break, on its line."""
    file = BOUND / "graph_break.py"
    findings = diagnosed(file, asked=DiagnosisRequest(explain_graphs=True)).diagnosis.findings
    assert {f.kind for f in findings} == {FindingKind.GRAPH_BREAK, FindingKind.PRINT}
    assert {(Path(f.file), f.line) for f in findings} == {(file, line_of(file, "# here"))}
    assert any("print" in f.what for f in findings if f.kind is FindingKind.GRAPH_BREAK)


def test_graphs_of_eager_plans_are_left_alone(diagnosed):
    """Tracing takes seconds, so a run does not do it for a baseline that does not compile."""
    diagnosis = diagnosed(BOUND / "graph_break.py").diagnosis
    assert {f.kind for f in diagnosis.findings} == {FindingKind.PRINT}
    assert "does not compile" in diagnosis.unknown["graph_breaks"]


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_a_compiled_plan_tells_its_graph_breaks(diagnosed, write_workload):
    """Branching on a value of a tensor is found with its line, and the reason in words."""
    path = write_workload(
        """
        class Branching(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(16, 3)
            def forward(self, x):
                x = self.linear(x)
                if x.sum() > 0:  # here
                    x = x + 1
                return x

        def build_model():
            return Branching()
        """
    )
    findings = diagnosed(path, compile_mode="default").diagnosis.findings
    (found,) = (f for f in findings if f.kind is FindingKind.GRAPH_BREAK)
    assert (Path(found.file), found.line) == (path, line_of(path, "# here"))
    assert "branching" in found.what


def test_a_vocabulary_of_50257_is_found(diagnosed):
    """A side that tensor cores cannot read is told with its parameter and a better length."""
    findings = diagnosed(BOUND / "vocabulary.py", batch_size=2).diagnosis.findings
    (finding,) = findings
    assert finding.kind is FindingKind.SHAPE
    assert "words.weight (50257, 64)" in finding.what
    assert "50304" in finding.advice


def test_sides_that_follow_from_the_batch_are_left_alone(diagnosed, write_workload):
    """Packed sequences have others in each step; only what weights bring along can be padded."""
    path = write_workload("def build_dataset(): return Rows(154)")
    diagnosis = diagnosed(path, batch_size=77).diagnosis
    assert FindingKind.SHAPE not in {f.kind for f in diagnosis.findings}


def test_the_longest_sides_are_told_and_no_more_than_a_handful():
    """Each with the weights that have it; a bias is no matrix, and a short side costs little."""
    odd = [65 + 2 * n for n in range(9)]
    model = nn.Sequential(*(nn.Linear(8, side) for side in (*odd, 63)))
    found = uneven_weights({*odd, 63, 8, 1001}, model)
    assert [finding.what.split()[0] for finding in found] == ["81", "79", "77", "75", "73"]
    assert found[0].what.endswith(": 8.weight (81, 8)")


LOSSES = {
    "negatives": (
        """
        def compute_loss(model, batch):
            own = nn.functional.normalize(model(batch[0]))
            return nn.functional.cross_entropy(10 * own @ own.T, torch.arange(len(own)))
        """,
        True,
    ),
    "tokens": (
        """
        def collate_fn(samples):
            rows = torch.stack([row for row, _ in samples])
            return rows, torch.tensor([3, 3, 1, 1])[: len(rows)]
        def compute_loss(model, batch):
            rows, lengths = batch
            there = torch.arange(3) < lengths[:, None]
            return (model(rows) ** 2 * lengths[:, None])[there].mean()
        """,
        True,
    ),
    "tokens as hard as each other": (
        """
        def build_model():
            model = nn.Linear(16, 3)
            nn.init.zeros_(model.weight)
            return model
        def collate_fn(samples):
            rows, labels = zip(*samples)
            return torch.stack(rows), torch.tensor([-100, labels[1], -100, -100])[: len(rows)]
        """,
        True,
    ),
    "no halves": (
        """
        def collate_fn(samples):
            rows, labels = torch.utils.data.default_collate(samples)
            return {"rows": rows, "labels": labels, "how": {1, 2}}
        def compute_loss(model, batch):
            return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])
        """,
        False,
    ),
    "samples": ("", False),
    "at random": (
        """
        def compute_loss(model, batch):
            rows = batch[0] + torch.randn_like(batch[0])
            return nn.functional.cross_entropy(model(rows), batch[1])
        """,
        False,
    ),
    "with dropout and batch norm": (
        """
        def build_model():
            layers = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3)
            return nn.Sequential(*layers)
        """,
        False,
    ),
    "for training alone": (
        """
        class Strict(nn.Linear):
            def forward(self, x):
                assert self.training
                return super().forward(x)
        def build_model():
            return Strict(16, 3)
        """,
        False,
    ),
}


CANNOT_BE_TOLD = {"at random", "for training alone", "no halves"}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_that_depends_on_the_batch_is_found(case, diagnosed, write_workload):
    """Accumulating it in smaller parts would train another loss, without a word."""
    source, mixes = LOSSES[case]
    diagnosis = diagnosed(write_workload(source)).diagnosis
    found = [f for f in diagnosis.findings if f.kind is FindingKind.BATCH_LOSS]
    assert ["gradient of 4 samples" in f.what for f in found] == [True] * mixes
    assert ("batch_loss" in diagnosis.unknown) is (case in CANNOT_BE_TOLD)


def test_a_stalling_loader_is_found(diagnosed):
    """The loader's own speed stands beside the step's."""
    diagnosis = diagnosed(BOUND / "data.py").diagnosis
    assert diagnosis.loader_samples_per_s < 1 / 0.005
    assert diagnosis.loader_samples_per_s < diagnosis.step_samples_per_s
    (finding,) = (f for f in diagnosis.findings if f.kind is FindingKind.LOADER)
    assert "take turns" in finding.what


def test_a_loader_faster_than_the_step_is_not_blamed_for_its_speed():
    """Without workers it takes its turn with the step; with them batches may come unevenly."""
    why, advice = why_waiting(72_000.0, 3900.0, loads_in_loop=True)
    assert "take turns" in why
    assert advice.startswith("workers")
    why, advice = why_waiting(72_000.0, 3900.0, loads_in_loop=False)
    assert "although" in why
    assert "more workers" not in advice
    why, advice = why_waiting(390.0, 3900.0, loads_in_loop=False)
    assert "fewer than" in why
    assert "more workers" in advice


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_a_clean_step_has_no_findings(diagnosed):
    """Nothing is made up: a plain model has no findings, also where all was looked for."""
    asked = DiagnosisRequest(explain_graphs=True)
    diagnosis = diagnosed(BOUND / "launches.py", asked=asked).diagnosis
    assert diagnosis.findings == ()
    assert diagnosis.unknown.keys() == {"copy", "idle", "communication", "other"}, (
        diagnosis.unknown
    )


def test_the_trace_is_written(diagnosed, write_workload, tmp_path):
    """The Chrome trace shows each part of a step, and the diagnosis says where it is."""
    asked = DiagnosisRequest(trace_path=str(tmp_path / "trace.json"))
    diagnosis = diagnosed(write_workload(), asked=asked).diagnosis
    assert diagnosis.trace_path == asked.trace_path
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {f"autotune::{part}" for part in ("data", "forward", "backward", "optimizer")} <= names


def test_slow_trials_are_not_diagnosed_where_a_speed_is_asked_for(diagnosed, write_workload):
    """And a brief diagnosis says what limits the step, and nothing about the user's code."""
    slow = diagnosed(write_workload(), asked=DiagnosisRequest(above=1e12))
    assert slow.diagnosis is None
    assert slow.measurement is not None
    brief = diagnosed(write_workload(), asked=DiagnosisRequest(above=1.0, brief=True)).diagnosis
    assert brief.causes
    assert not brief.findings
    assert brief.unknown["findings"] == "only what limits the step was looked at"


def test_a_diagnosis_begins_nothing_after_its_time(diagnosed, write_workload):
    """Short budgets allow it few seconds; each part that was left out says so."""
    late = diagnosed(write_workload(), asked=DiagnosisRequest(within_s=0.0)).diagnosis
    assert late.bound is None
    assert not late.findings
    for name in ("bound", "findings", "loader_samples_per_s", "batch_loss"):
        assert late.unknown[name] == "the 0 s that a diagnosis may take were over"


def test_the_profile_does_not_touch_what_was_measured(diagnosed, write_workload):
    """What is measured is kept before the diagnosis begins, and is the same after it."""
    path = write_workload()
    request = TrialRequest(
        number=1,
        plan=Plan.of({"batch_size": 4}),
        purpose=Purpose.MEASURE,
        workload_path=str(path),
        working_dir=str(path.parent),
        device_kind="cpu",
        protocol=QUICK,
        diagnosis=DiagnosisRequest(),
    )
    *phases, kept, last, result = run_trial(request)
    assert phases[-1] is Phase.MEASURE
    assert last is Phase.DIAGNOSE
    assert isinstance(kept, Kept)
    assert kept.result == replace(result, diagnosis=None)


def test_what_fails_is_unknown_and_the_trial_is_not(diagnosed, write_workload, monkeypatch):
    """A profiler that fails costs the bound, with the reason; the rest is still found out."""

    def broken(*args):
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(steps_of_a_diagnosis, "trace_steps", broken)
    result = diagnosed(write_workload())
    assert result.measurement is not None
    assert result.diagnosis.bound is None
    assert "no profiler today" in result.diagnosis.unknown["bound"]
    assert result.diagnosis.flops_per_sample is not None


def test_a_step_that_ends_the_process_is_unknown(diagnosed, write_workload):
    """Also code that calls `sys.exit` once it is watched costs no measurement."""
    path = write_workload(
        """
        import sys

        def compute_loss(model, batch):
            if "_Listener" in type(sys.stdout).__name__:
                sys.exit(3)
            x, y = batch
            return nn.functional.cross_entropy(model(x), y)
        """
    )
    result = diagnosed(path)
    assert result.measurement is not None
    assert "sys.exit(3)" in result.diagnosis.unknown["findings"]


def test_a_diagnosis_survives_json(diagnosed):
    """What is stored and read again is the same, findings and nulls included."""
    diagnosis = diagnosed(BOUND / "graph_break.py").diagnosis
    assert Diagnosis.from_dict(json.loads(json.dumps(diagnosis.to_dict()))) == diagnosis
