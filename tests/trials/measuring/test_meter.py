"""Each rule of the measurement protocol, with a workload that gives a wrong number without it.

Bounds are one-sided: the workloads sleep, so a busy machine can only make them slower.
"""

import sys
import time
from dataclasses import fields, replace

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.measuring.meter import Meter
from autotune.trials.process_group import Ranks
from autotune.trials.request import Deadlines, Protocol
from autotune.trials.result import Outcome, Phase
from autotune.trials.workload import load_workload
from tests.trials.conftest import QUICK

SLOW_ROWS = """
class SlowRows(Rows):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)

def build_dataset():
    return SlowRows(4000)
"""


def test_a_queue_filled_while_compiling_is_not_measured(write_workload, run_plan):
    """A loader slower than the step is measured at the loader's speed, however deep its queue."""
    path = write_workload(
        SLOW_ROWS
        + """
calls = 0

def compute_loss(model, batch):
    global calls
    calls += 1
    if calls == 1:
        time.sleep(2.0)  # as long as compiling: the workers fill their queues meanwhile
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""
    )
    protocol = Protocol(window_s=0.2, min_windows=3, max_measure_s=0.6, min_warm_up_steps=5)
    result = run_plan(path, {"workers": 2, "prefetch": 64}, protocol=protocol)
    assert result.measurement is not None
    fastest = 2 / 0.005  # two workers, each sleeping 5 ms per sample
    assert result.measurement.throughput < 1.2 * fastest


def test_a_window_holds_whole_bursts(write_workload, run_plan):
    """Two workers that wait alike give two batches at once, and then none."""
    slow = write_workload(SLOW_ROWS.replace("0.005", "0.05"))
    for workers, whole in ((2, True), (0, False)):
        result = run_plan(slow, {"workers": workers})
        assert result.measurement, result.error
        steps = [window.steps for window in result.measurement.windows]
        assert all(count % 2 == 0 for count in steps) is whole


def test_waiting_for_data_is_part_of_a_step(write_workload, run_plan):
    """Throughput is end to end, and the share of waiting is known."""
    result = run_plan(write_workload(SLOW_ROWS))
    assert result.measurement is not None
    assert result.measurement.throughput <= 1 / 0.005
    assert all(w.data_wait_s >= 0.005 * w.samples for w in result.measurement.windows)


def test_a_slow_first_step_is_not_counted(write_workload, run_plan):
    """Compilation is in `first_step_s` and in no window."""
    path = write_workload(
        """
        calls = 0

        def compute_loss(model, batch):
            global calls
            calls += 1
            if calls == 1:
                time.sleep(1.5)
            x, y = batch
            return nn.functional.cross_entropy(model(x), y)
        """
    )
    measured = run_plan(path).measurement
    assert measured is not None
    assert measured.first_step_s >= 1.5
    assert all(window.seconds < 1.5 for window in measured.windows)


def test_an_epoch_boundary_counts(write_workload, run_plan):
    """The pause in which a loader starts its next epoch is part of training."""
    path = write_workload(
        """
        class Loader(torch.utils.data.DataLoader):
            def __iter__(self):
                time.sleep(0.05)
                return super().__iter__()

        def build_dataset():
            return Rows(16)

        def build_dataloader(dataset, **kwargs):
            return Loader(dataset, **kwargs)
        """
    )
    protocol = replace(QUICK, window_s=0.05, max_measure_s=1.0)
    measured = run_plan(path, protocol=protocol).measurement
    assert measured is not None
    assert measured.throughput <= 1.2 * 16 / 0.05


SLOW_STEPS = """
calls = 0

def compute_loss(model, batch):
    global calls
    calls += 1
    time.sleep(0.3)
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""


def test_long_steps_settle_by_time(write_workload, run_plan):
    """One of many seconds is measured within the deadlines: five to warm up would be too many."""
    protocol = replace(QUICK, max_warm_up_s=0.2, max_measure_s=0.2, min_windows=5)
    path = write_workload(SLOW_STEPS)
    measured = run_plan(path, protocol=protocol).measurement
    assert measured is not None
    assert len(measured.windows) == 2
    first, warming_up, in_windows = 1, 2, 2
    assert sys.modules[path.stem].calls == first + warming_up + in_windows


def test_a_longer_budget_is_more_patient():
    """So that a message may advise one; a short one keeps the least."""
    assert Deadlines.within(60.0) == Deadlines()
    assert Deadlines.within(7200.0) == Deadlines(
        **dict.fromkeys((f.name for f in fields(Deadlines)), 360.0) | {"first_step_s": 600.0}
    )


PAUSE_S = 0.1


class SlowToGather(Ranks):
    """Ranks that need a while to agree on each window, in which a loader could fill its queue."""

    def worst(self, *values):
        time.sleep(PAUSE_S)
        return super().worst(*values)


def test_windows_are_back_to_back(write_workload):
    """What happens between two windows is in the second one: no queue fills unseen."""
    workload = load_workload(write_workload())
    with build_step(workload, Plan.of({"batch_size": 4}), torch.device("cpu"), 0) as step:
        meter = Meter(step, workload, QUICK, SlowToGather())
        meter.first_step()
        meter.warm_up()
        windows, _ = meter.windows(None)
    assert len(windows) > 1
    assert all(window.seconds >= PAUSE_S for window in windows[1:])


def test_windows_hold_whole_optimizer_steps(write_workload, run_plan):
    """With accumulation a step is several batches, and all their samples count."""
    path = write_workload("GLOBAL_BATCH_SIZE = 16")
    measured = run_plan(path, {"batch_size": 4, "accumulation": 4}).measurement
    assert measured is not None
    assert all(window.samples == window.steps * 16 for window in measured.windows)


def test_at_least_the_minimum_of_windows_or_the_time_cap(write_workload, run_plan):
    """A step longer than the whole cap still gives two windows, so there is an interval."""
    path = write_workload(
        """
        def compute_loss(model, batch):
            time.sleep(0.15)
            x, y = batch
            return nn.functional.cross_entropy(model(x), y)
        """
    )
    measured = run_plan(path, protocol=replace(QUICK, min_warm_up_steps=3)).measurement
    assert measured is not None
    assert len(measured.windows) == 2
    assert measured.throughput_low < measured.throughput < measured.throughput_high


def test_a_hopeless_trial_stops_early(write_workload, run_plan):
    """A plan clearly below what is interesting is cut after three windows, and says so."""
    protocol = replace(QUICK, min_windows=50, max_measure_s=60.0)
    measured = run_plan(write_workload(), protocol=protocol, interesting_above=1e9).measurement
    assert measured is not None
    assert measured.raced
    assert len(measured.windows) == 3


def test_unknown_is_none(write_workload, run_plan):
    """A CPU has no device memory: None, not zero."""
    measured = run_plan(write_workload()).measurement
    assert measured is not None
    assert measured.peak_reserved_bytes is None
    assert measured.alloc_retries is None
    assert measured.memory_bytes == measured.peak_host_bytes


def test_a_loss_that_turns_nan_while_measuring_is_diverged(write_workload, run_plan, monkeypatch):
    """Speed of a training that broke is no result."""
    path = write_workload(
        """
        factor = 1.0

        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model(x), y) * factor
        """
    )
    windows = Meter.windows

    def broken(meter, interesting_above):
        sys.modules[path.stem].factor = float("nan")
        return windows(meter, interesting_above)

    monkeypatch.setattr(Meter, "windows", broken)
    result = run_plan(path)
    assert result.outcome is Outcome.DIVERGED
    assert result.phase is Phase.MEASURE
    assert "nan" in (result.error or "")
