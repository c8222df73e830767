"""The campaign of faults tells runs that end as they should from those that do not."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def faults():
    """The campaign, which is a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [BENCHMARKS, *sys.path])
        import faults

        yield faults


def test_a_command_that_a_scheduler_ends_writes_the_best_so_far(faults):
    """A real run of a script, ended by SIGTERM in its trials: nothing is lost or left."""
    args = SimpleNamespace(budget=90.0, keep=None)
    name = "driver SIGTERM, a command"
    ended = faults.play(name, 0.5, args)
    assert ended.hit, ended
    assert ended.has_plan, ended
    assert faults.is_good(faults.KINDS[name], ended), ended
    assert faults.row(name, [ended])[:4] == [name, "1", "1", "130 (1)"]
    for change in (
        {"lost": 1},
        {"left": 1},
        {"hung": True},
        {"code": 0},
        {"overrun_s": 6.0},
        {"ending_s": 11.0},
    ):
        assert not faults.is_good(faults.KINDS[name], replace(ended, **change))
