"""What a report says, and what can be read of older ones."""

import math

from autotune.trials.numerics_report import Deviation, NumericsReport, Part

NEAR = Deviation(part=Part.GRADIENTS, what="gradients", seen=0.006, allowed=0.039, by_itself=0.009)
FAR = Deviation(
    part=Part.GRADIENTS, what="gradient of head.bias", seen=1.0, allowed=0.5, by_itself=0.01
)


def test_a_plan_that_passes_is_told_by_its_gradients():
    """With what was allowed, and what its format does to eager fp32 by itself."""
    report = NumericsReport(deviations=(NEAR,), format="bf16")
    assert report.summary == (
        "gradients within 0.60% of eager fp32 at the same weights "
        "(up to 3.9% passes; rounding eager fp32 to bf16 moves it 0.90%)"
    )


def test_a_plan_that_fails_is_told_by_what_is_farthest():
    """A tensor is named, and the part says which settings may be to blame."""
    report = NumericsReport(deviations=(NEAR, FAR), format="bf16")
    assert not report.passed
    assert report.worst.part is Part.GRADIENTS
    assert report.summary.startswith("gradient of head.bias 100.0% away from eager fp32")


def test_what_is_not_finite_fails_whatever_is_allowed():
    """Also where rounding makes the loss of eager fp32 infinite, so that anything is allowed."""
    found = Deviation(part=Part.LOSS, what="loss", seen=math.inf, allowed=math.inf)
    assert not NumericsReport(deviations=(found,)).passed


def test_a_report_without_comparison_fails_nothing():
    """It says why it is unchecked."""
    report = NumericsReport(unchecked="eager fp32 leaves its optimizer no gradients to compare")
    assert report.passed
    assert report.summary == "not checked: eager fp32 leaves its optimizer no gradients to compare"


def test_reports_of_older_runs_can_be_read():
    """They held the largest difference of the losses of two trainings."""
    old = {"reference_losses": [2.0], "plan_losses": [None], "tolerance": 0.05, "worst": None}
    failed = NumericsReport.from_dict(old)
    passed = NumericsReport.from_dict({**old, "plan_losses": [2.0], "worst": 0.01})
    assert not failed.passed
    assert math.isnan(failed.plan_losses[0])
    assert passed.passed
    assert (
        passed.summary
        == "losses of a short training within 1.0% of eager fp32 (up to 5.0% passes)"
    )
