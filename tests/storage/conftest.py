"""Stores for tests, and what goes into them."""

from collections.abc import Callable, Iterator

import pytest

from autotune.search_space.plan import Plan
from autotune.storage.records import NewRun
from autotune.storage.sql import SqlStore, open_store
from autotune.trials.result import Measurement, Window


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    """A new store in each database."""
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def new_run() -> Callable[..., NewRun]:
    """Make a run that is about to start; keywords change its fields."""
    return make_run


def make_run(**changes: object) -> NewRun:
    """Return a run of a small workload."""
    values: dict[str, object] = {
        "key": "key",
        "name": None,
        "workload_path": "/home/me/model.py",
        "workload_hash": "abc",
        "hardware": {"device_name": "cpu", "num_cores": 2},
        "facts": {"batch_size": 32},
        "options": {"numerics": "precision"},
        "baseline": Plan.of({"precision": "fp32", "workers": 0, "pin_memory": False}),
        "budget_s": 60.0,
        "driver": "host:1:1",
    }
    return NewRun(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """Make a measurement of a throughput; keywords change its fields."""
    return make_measurement


def make_measurement(throughput: float, **changes: object) -> Measurement:
    """Return a complete measurement with two windows."""
    window = Window(steps=10, samples=320, seconds=0.25, data_wait_s=0.01)
    values: dict[str, object] = {
        "throughput": throughput,
        "throughput_low": throughput * 0.99,
        "throughput_high": throughput * 1.01,
        "step_ms": 25.0,
        "step_ms_spread": 0.01,
        "data_wait_share": 0.04,
        "build_s": 0.5,
        "first_step_s": 1.5,
        "warm_up_s": 1.0,
        "measure_s": 2.0,
        "first_loss": 2.5,
        "last_loss": 1.5,
        "settled": True,
        "peak_reserved_overall_bytes": 3 * 2**30,
        "peak_host_bytes": 2**40,
        "windows": (window, Window(steps=9, samples=288, seconds=0.26, data_wait_s=0.0)),
    }
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]
