"""The verdict and the why as text, which the terminal, plan files and pages share."""

from dataclasses import replace

import pytest

from autotune.report.conclusion import (
    explained_changes,
    headline,
    sorted_remarks,
    waterfall,
    why_lines,
)
from autotune.report.verdict import verdict_of
from autotune.report.why import why_of
from autotune.storage.figures import PlanFigures
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.result import Outcome, TrialResult
from tests.report.conftest import AGAIN, BASELINE, CHECKED, FIRST, SEARCHED, ok, plan, won

BF16 = {"precision": "bf16"}
FAILED_CHECK = TrialResult(
    outcome=Outcome.OK,
    numerics=NumericsReport(
        deviations=(Deviation(part=Part.LOSS, what="loss", seen=0.5, allowed=0.1),)
    ),
)
KEPT = won(BASELINE, 100.0, 100.0)
BEST = won(plan(**BF16), 200.0, 100.0, (2.0, 1.9, 2.1))
OBJECTIVES = {
    "memory": {"name": "memory", "min_throughput_share": 0.9},
    "time": {"name": "time-to-train", "train_samples": 1000},
    "target": {"name": "time-to-quality", "target": 0.9},
}


def trained_in(train_s):
    """Return the figures of a plan that was trained to a target."""
    return PlanFigures(throughput=200.0, memory_bytes=8 * 2**30, train_s=train_s)


TOLD = {
    "confirmed": (
        BEST,
        (200.0, SEARCHED),
        {},
        "CONFIRMED: 2.00 times as fast as your baseline (95 % interval 1.90 to 2.10)",
    ),
    "once": (
        won(plan(**BF16), 200.0, 100.0),
        (200.0, SEARCHED),
        {},
        "UNCERTAIN: 2.00 times as fast as your baseline (interval not known)",
    ),
    "smaller": (
        BEST,
        (200.0, SEARCHED),
        OBJECTIVES["memory"],
        "CONFIRMED: 0.80 times the memory of your baseline, 2.00 times as fast",
    ),
    "reached": (
        replace(BEST, own=trained_in(20.0), baseline=trained_in(50.0)),
        (200.0, SEARCHED),
        OBJECTIVES["target"],
        "CONFIRMED: its target reached in 20.0 s of training, 0.40 times that of your baseline (",
    ),
    "reached_alone": (
        replace(BEST, own=trained_in(20.0)),
        (200.0, SEARCHED),
        OBJECTIVES["target"],
        "CONFIRMED: its target reached in 20.0 s of training, and not by your baseline in the ",
    ),
    "not_reached": (
        BEST,
        (200.0, SEARCHED),
        OBJECTIVES["target"],
        "UNCERTAIN: its target was not reached, 2.00 times as fast as your baseline",
    ),
    "batch_too_large": (
        replace(KEPT, own=trained_in(50.0), baseline=trained_in(50.0)),
        (200.0, SEARCHED),
        OBJECTIVES["target"],
        "NO GAIN: keep your baseline; it reached its target first, in 50.0 s of training",
    ),
    "no_gain": (
        KEPT,
        (90.0, SEARCHED),
        {},
        "NO GAIN: keep your baseline; the best other plan is 0.90 times as fast",
    ),
    "too_late": (
        KEPT,
        (200.0, SEARCHED),
        OBJECTIVES["time"],
        "NO GAIN: keep your baseline; no other plan is better",
    ),
    "oom": (
        KEPT,
        (200.0, AGAIN),
        {},
        "REJECTED (memory): keep your baseline; a plan 2.00 times as fast leaves too little",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_verdict_is_one_line(case, make):
    """The word, then the speed-up and how sure it is, or what is to be kept."""
    winner, (speed, purpose), objective, line = TOLD[case]
    trials = [({}, FIRST, ok(100.0)), (BF16, SEARCHED, ok(speed))]
    if purpose is AGAIN:
        trials.append((BF16, AGAIN, TrialResult(outcome=Outcome.OOM, error="none left")))
    options = {"objective": objective} if objective else {}
    assert headline(verdict_of(*make(winner, *trials, options=options))).startswith(line)


def test_a_failed_check_is_told_in_the_verdict(make):
    """Eight times as fast is no gain if it trains something else."""
    trials = ({}, FIRST, ok(100.0)), (BF16, SEARCHED, ok(800.0)), (BF16, CHECKED, FAILED_CHECK)
    told = headline(verdict_of(*make(KEPT, *trials)))
    assert told == (
        "REJECTED (numerics): keep your baseline; a plan 8.00 times as fast does not compute what "
        "eager fp32 does"
    )


def test_a_waterfall_goes_from_the_baseline_to_the_winner(make):
    """Each line's factor leads to the next, and the last one is the whole."""
    found = {**BF16, "workers": 4}
    winner = won(plan(**found), 300.0, 100.0, (3.0, 2.97, 3.03))
    trials = ({}, FIRST, ok(100.0)), (BF16, SEARCHED, ok(200.0)), (found, SEARCHED, ok(300.0))
    why = why_of(*make(winner, *trials))
    reasons = {"precision": "fewer bits", "workers": "they load"}
    first, *shares, last = waterfall(why, reasons)
    assert (first.what, first.so_far, first.note) == ("your baseline", "1.00", "100 samples/s")
    assert [line.what for line in shares] == ["precision=bf16", "workers=4"]
    assert [line.note for line in shares] == ["fewer bits", "they load"]
    assert (last.what, last.so_far, last.note) == ("winner", "3.00", "300 samples/s")
    assert shares[-1].after == pytest.approx(last.after)
    assert why_lines(why)[0].endswith("): precision=bf16")
    assert explained_changes(reasons, why)["workers"].endswith("): they load")


def test_a_faster_trial_that_was_not_measured_again_is_a_warning(make):
    """Nobody should wonder why the fastest trial of the list did not win."""
    trials = (
        ({}, FIRST, ok(100.0)),
        (BF16, AGAIN, ok(200.0)),
        ({"workers": 4}, SEARCHED, ok(400.0)),
    )
    verdict = verdict_of(*make(BEST, *trials))
    told = sorted_remarks(["the training changes: batch_size=64", "numerics: fine"], verdict)
    assert told.training == ("batch_size=64",)
    assert told.notes == ("numerics: fine",)
    (warning,) = told.warnings
    assert "trial 3 with 400 samples/s" in warning
