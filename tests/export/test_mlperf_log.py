"""Logs of MLPerf's format, read by MLPerf's own parser."""

import sys

import pytest
from mlperf_logging.compliance_checker import mlp_parser

from autotune.errors import UsageError
from autotune.export.mlperf_log import MeasuredPlan, MlperfLog
from autotune.search_space.plan import Plan
from autotune.storage.testing import make_measurement


@pytest.fixture
def events(tmp_path):
    """What MLPerf's parser reads of a plan that was measured."""
    path = tmp_path / "result.txt"
    measured = MeasuredPlan(
        name="model",
        device="a GPU",
        plan=Plan.of({"batch_size": 32, "accumulation": 2, "precision": "bf16"}),
        num_ranks=4,
        seed=7,
        measurement=make_measurement(1000.0),
    )
    MlperfLog(path).write(measured)
    lines, errors = mlp_parser.parse_file(str(path), ruleset="6.1.0")
    assert not errors
    return lines


def _value(events, key):
    (found,) = (line.value["value"] for line in events if line.key == key)
    return found


def test_facts_of_the_plan_are_read_back(events):
    assert _value(events, "submission_benchmark") == "model"
    assert _value(events, "submission_platform") == "4x a GPU"
    assert _value(events, "global_batch_size") == 32 * 2 * 4
    assert _value(events, "plan")["precision"] == "bf16"
    assert _value(events, "seed") == 7


def test_phases_are_as_long_as_they_were(events):
    """Three seconds until training was steady, and windows of half a second, in milliseconds."""
    at = {line.key: line.timestamp for line in events}
    assert at["init_stop"] - at["init_start"] == pytest.approx(3000, abs=2)
    assert at["run_stop"] - at["run_start"] == pytest.approx(510, abs=2)


def test_each_window_has_its_throughput(events):
    windows = [line.value["value"] for line in events if line.key == "tracked_stats"]
    assert [round(window["throughput"]) for window in windows] == [1280, 1108]


def test_without_the_library_the_install_line_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_logging.mllog", None)
    with pytest.raises(UsageError, match=r"pip install 'torch-autotune\[mlperf\]'"):
        MlperfLog(tmp_path / "result.txt")


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        MlperfLog(tmp_path)
