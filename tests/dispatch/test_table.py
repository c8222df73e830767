"""Recorded tables keep what was measured, and what a search on them may ask."""

import pytest

from autotune.dispatch.table import Table, append_result, read_table, start_table
from autotune.errors import UsageError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.request import Protocol
from autotune.trials.result import Measurement, Outcome, TrialResult, Window
from tests.search_space.machines import GPU_MACHINE

FACTS = WorkloadFacts(batch_size=32, dataset_len=10_000, optimizer_impls=("fused",))
FIX = (("threads", "1"),)
SPACE = build_space(FACTS, GPU_MACHINE, Narrowing(fix=FIX))
FAST = SPACE.plan({"precision": "bf16"})
OOM = TrialResult(
    outcome=Outcome.OOM, error="out of memory", requested_bytes=2**30, log_tail="long", total_s=4.5
)


def measured(*rates: float) -> TrialResult:
    """Return a result of windows of a second with these throughputs."""
    windows = tuple(
        Window(steps=2, samples=int(rate), seconds=1.0, data_wait_s=0.25) for rate in rates
    )
    measurement = Measurement(
        throughput=sum(rates) / len(rates),
        throughput_low=90.0,
        throughput_high=110.0,
        step_ms=500.0,
        step_ms_spread=0.01,
        data_wait_share=0.25,
        build_s=0.5,
        first_step_s=1.0,
        warm_up_s=1.0,
        measure_s=float(len(rates)),
        first_loss=2.0,
        last_loss=1.0,
        settled=True,
        peak_reserved_overall_bytes=2**33,
        windows=windows,
    )
    return TrialResult(outcome=Outcome.OK, measurement=measurement, total_s=3.0 + len(rates))


@pytest.fixture
def path(tmp_path):
    """A table of three plans, one of them measured in two processes."""
    file = tmp_path / "gpt.jsonl"
    table = Table(
        name="gpt",
        hardware=GPU_MACHINE,
        facts=FACTS,
        protocol=Protocol(max_measure_s=3.0),
        how="quietly",
        fix=FIX,
    )
    start_table(file, table)
    for plan, result in [
        (SPACE.baseline, measured(100, 101, 99)),
        (FAST, measured(200, 202)),
        (SPACE.plan({"batch_size": 2048}), OOM),
        (FAST, measured(210, 208)),
    ]:
        append_result(file, plan, result)
    return file


def test_a_table_gives_back_what_was_recorded(path):
    """Windows and failures included; logs stay behind."""
    table = read_table(path)
    assert (table.hardware, table.facts, table.fix) == (GPU_MACHINE, FACTS, FIX)
    assert (table.name, table.how, table.protocol.max_measure_s) == ("gpt", "quietly", 3.0)
    assert table.results[FAST] == (measured(200, 202), measured(210, 208))
    (failed,) = table.results[SPACE.plan({"batch_size": 2048})]
    assert (failed.outcome, failed.requested_bytes, failed.log_tail) == (Outcome.OOM, 2**30, "")


def test_the_space_of_a_table_is_what_was_recorded(path):
    """The baseline has what was fixed, and no plan is possible that was not measured."""
    space = read_table(path).space
    assert space.baseline == SPACE.baseline
    assert space.baseline["threads"] == 1
    assert set(space.enumerate()) == set(read_table(path).results)
    assert space.possible({"precision": "bf16", "batch_size": 2048}) is None


def test_a_recording_that_was_killed_goes_on_after_the_last_whole_line(path):
    """Half a line is no result, and does not spoil the next one."""
    path.write_text(path.read_text()[:-40])
    assert len(read_table(path).results[FAST]) == 1
    append_result(path, FAST, measured(205, 206))
    assert read_table(path).results[FAST][-1] == measured(205, 206)


@pytest.mark.parametrize("text", ["", "no json\n", "{}\n"])
def test_what_is_no_table_is_said_to_be_none(tmp_path, text):
    """The message names the file."""
    file = tmp_path / "odd.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"odd\.jsonl is no recorded table"):
        read_table(file)


def test_plans_are_written_one_a_line(path):
    """So that tables can be compared by lines; the first line is the header."""
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    assert Plan.of({"precision": "bf16"}).items[0][1] in lines[2]
