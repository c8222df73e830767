"""Runs written down by hand, and real ones of a machine with an H200."""

from contextlib import closing
from dataclasses import replace

import pytest

from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import RunState, Winner
from autotune.storage.sql import open_store
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.result import Outcome, Purpose, TrialResult

BASELINE = Plan.of({"precision": "fp32", "workers": 0, "pin_memory": False})


def plan(**values):
    """Return the baseline with other values."""
    return Plan.of({**BASELINE.values, **values})


def ok(throughput, memory_gib=10, **changes):
    """Return the result of a trial that was measured."""
    measured = make_measurement(throughput, **changes)
    measured = replace(measured, peak_reserved_overall_bytes=int(memory_gib * 2**30))
    return TrialResult(outcome=Outcome.OK, measurement=measured)


def won(plan, throughput, baseline, speedup=None, **changes):
    """Return a winner of these throughputs; without a speed-up it was not confirmed."""
    values = {
        "plan": plan,
        "kept_baseline": plan == BASELINE,
        "confirmed": speedup is not None,
        "speedup": speedup and Interval(ratio=speedup[0], low=speedup[1], high=speedup[2]),
        "own": PlanFigures(throughput=throughput, memory_bytes=8 * 2**30),
        "baseline": PlanFigures(throughput=baseline, memory_bytes=10 * 2**30),
        "how": "3 rounds of fresh processes.",
    }
    return Winner(**{**values, **changes})


@pytest.fixture
def make(tmp_path):
    """Store a run with trials of `(values, purpose, result)`; return it and its trials."""

    def made(winner, *trials, **changes):
        run = make_run(**{"baseline": BASELINE, **changes})
        with closing(open_store(str(tmp_path / "runs.db"))) as store:
            stored = store.create_run(run)
            for number, (values, purpose, result) in enumerate(trials, 1):
                store.start_trial(stored.id, number, plan(**values), purpose, "", "a.log")
                store.finish_trial(stored.id, number, result, 1.0)
            if winner is not None:
                store.finish_run(
                    stored.id, RunState.DONE, stop_reason="", used_s=1.0, winner=winner
                )
            return store.run(str(stored.id)), store.trials(stored.id)

    return made


@pytest.fixture
def real(h200):
    """Return a run of the store by its name, and its trials."""

    def read(name):
        with closing(open_store(h200, read_only=True)) as store:
            run = store.run(name)
            return run, store.trials(run.id)

    return read


SEARCHED, AGAIN, FLIPPED = Purpose.PRESET, Purpose.CONFIRM, Purpose.ABLATE
FIRST, CHECKED = Purpose.BASELINE, Purpose.NUMERICS
