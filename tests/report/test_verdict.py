"""What is said about a run in one word, from what is stored about it."""

import pytest

from autotune.report.verdict import Reason, Word, disqualified, verdict_of
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.result import Outcome, TrialResult
from tests.report.conftest import AGAIN, BASELINE, CHECKED, FIRST, SEARCHED, ok, plan, won

FAILED_CHECK = NumericsReport(
    deviations=(Deviation(part=Part.LOSS, what="loss", seen=0.5, allowed=0.1),)
)
BF16 = plan(precision="bf16")
HARDWARE = {
    "device_kind": "cuda",
    "device_name": "NVIDIA H200",
    "num_devices": 1,
    "device_memory_bytes": 140 * 2**30,
    "capability": [9, 0],
    "num_cores": 16,
    "host_memory_bytes": 2**38,
    "versions": {},
}


def test_there_is_none_before_a_run_has_ended(make):
    """A run that goes on has a best plan so far, and no verdict."""
    assert verdict_of(*make(None, ({}, FIRST, ok(100.0)))) is None


def test_a_winner_above_1_by_its_whole_interval_is_confirmed(make):
    """The speed-up is what the run concluded, with its interval and what it rests on."""
    winner = won(BF16, 200.0, 100.0, (2.0, 1.9, 2.1))
    said = verdict_of(
        *make(winner, ({}, FIRST, ok(100.0)), ({"precision": "bf16"}, AGAIN, ok(200.0)))
    )
    assert (said.word, said.speedup, said.low, said.high) == (Word.CONFIRMED, 2.0, 1.9, 2.1)
    assert said.plan == BF16
    assert said.rests_on == "3 rounds of fresh processes"
    assert not said.kept_baseline


def test_a_winner_that_was_measured_once_is_uncertain(make):
    """Its speed-up is the ratio of two processes, without an interval."""
    trials = ({}, FIRST, ok(100.0)), ({"precision": "bf16"}, SEARCHED, ok(250.0))
    said = verdict_of(*make(won(BF16, 250.0, 100.0), *trials))
    assert (said.word, said.speedup, said.low, said.high) == (Word.UNCERTAIN, 2.5, None, None)


def test_an_interval_wider_than_tenfold_is_not_known(make):
    """Nobody can use 0.4 to 677,605 times; the verdict is uncertain."""
    trials = [({}, FIRST, ok(100.0))]
    for theirs, ours in ((242.0, 1.0), (2.0, 2019.0)):
        trials += [({}, AGAIN, ok(theirs)), ({"precision": "bf16"}, AGAIN, ok(ours))]
    said = verdict_of(*make(won(BASELINE, 22.0, 22.0, (1.0, 1.0, 1.0)), *trials))
    assert (said.word, said.low, said.high) == (Word.UNCERTAIN, None, None)
    assert said.kept_baseline
    wide = won(BF16, 200.0, 100.0, (4.0, 1.1, 14.0))
    said = verdict_of(*make(wide, *trials))
    assert (said.word, said.low, said.high) == (Word.UNCERTAIN, None, None)


def test_a_baseline_that_nothing_beats_is_no_gain(make):
    """The speed-up shown is that of the best other plan, by the rule that chooses winners."""
    trials = [({}, FIRST, ok(100.0)), ({"precision": "bf16"}, SEARCHED, ok(101.0))]
    for theirs, ours in ((100.0, 100.5), (101.0, 100.0), (100.5, 100.0)):
        trials += [({}, AGAIN, ok(theirs)), ({"precision": "bf16"}, AGAIN, ok(ours))]
    said = verdict_of(*make(won(BASELINE, 100.5, 100.5, (1.0, 1.0, 1.0)), *trials))
    assert said.word == Word.NO_GAIN
    assert said.plan == BF16
    assert 0.97 < said.low < said.speedup < said.high < 1.02


def test_a_baseline_that_is_kept_untried_is_uncertain(make):
    """A budget for one trial says nothing about other plans."""
    said = verdict_of(*make(won(BASELINE, 100.0, 100.0), ({}, FIRST, ok(100.0))))
    assert (said.word, said.speedup, said.plan) == (Word.UNCERTAIN, None, None)


def test_a_plan_that_fails_its_check_is_rejected_for_its_numerics(make):
    """The page says why the baseline is kept under a curve that ends eight times as fast."""
    trials = [
        ({}, FIRST, ok(242.0)),
        ({"precision": "bf16"}, SEARCHED, ok(2019.0)),
        ({"precision": "bf16"}, CHECKED, TrialResult(outcome=Outcome.OK, numerics=FAILED_CHECK)),
    ]
    said = verdict_of(*make(won(BASELINE, 242.0, 242.0), *trials))
    assert (said.word, said.reason) == (Word.REJECTED, Reason.NUMERICS)
    assert said.speedup == pytest.approx(2019 / 242)
    (out,) = said.disqualified
    assert (out.trials, out.throughput) == ((2,), 2019.0)
    assert out.why.startswith("numerics: ")


def test_a_plan_that_leaves_too_little_memory_is_rejected_for_it(make):
    """5 % of the device stay free; the run need not have ended to say so."""
    trials = [({}, FIRST, ok(100.0)), ({"precision": "bf16"}, SEARCHED, ok(200.0, memory_gib=138))]
    run, stored = make(won(BASELINE, 100.0, 100.0), *trials, hardware=HARDWARE)
    said = verdict_of(run, stored)
    assert (said.word, said.reason) == (Word.REJECTED, Reason.MEMORY)
    going_on, stored = make(None, *trials, hardware=HARDWARE)
    assert [out.trials for out in disqualified(going_on, stored)] == [(2,)]


def test_a_winner_is_confirmed_beside_a_faster_plan_that_was_rejected(make):
    """The faster one is told of, so that nobody wonders about the best so far."""
    trials = [
        ({}, FIRST, ok(100.0)),
        ({"workers": 2}, SEARCHED, ok(300.0)),
        ({"workers": 2}, AGAIN, TrialResult(outcome=Outcome.OOM, error="no memory")),
        ({"precision": "bf16"}, SEARCHED, ok(200.0)),
    ]
    said = verdict_of(*make(won(BF16, 200.0, 100.0, (2.0, 1.9, 2.1)), *trials))
    assert said.word == Word.CONFIRMED
    assert [(out.trials, out.reason) for out in said.disqualified] == [((2,), Reason.MEMORY)]


REAL = {
    "resnet50": (Word.CONFIRMED, 12.18, True),
    "diffusion": (Word.CONFIRMED, 1.78, True),
    "imagenet": (Word.UNCERTAIN, 2.97, False),
}


@pytest.mark.parametrize("name", REAL)
def test_real_runs_have_the_verdict_that_their_trials_give(name, real):
    """Runs of an H200: two were confirmed, one had no time for it."""
    said = verdict_of(*real(name))
    assert (said.word, round(said.speedup, 2), said.low is not None) == REAL[name]
    assert said.disqualified == ()
