"""Trainings until `evaluate` reaches a target."""

from dataclasses import replace

import pytest

from autotune.trials.quality import QualityRequest
from autotune.trials.result import Outcome

# Counts its calls, and what it was called with; reaches 3 in the third.
COUNTED = """
    calls = []

    def evaluate(model):
        calls.append(torch.is_grad_enabled())
        model.eval()
        return torch.tensor(float(len(calls)))
"""


def request(target, limit_s=60.0, interval_s=0.05):
    return QualityRequest(target=target, limit_s=limit_s, interval_s=interval_s)


def test_a_training_ends_when_the_target_is_reached(write_workload, run_plan):
    """The curve has a point for each evaluation, at even intervals of training."""
    result = run_plan(write_workload(COUNTED), quality=request(3.0))
    assert result.outcome is Outcome.OK, result.error
    assert result.measurement is None
    curve = result.quality
    assert [point.value for point in curve.points] == [1.0, 2.0, 3.0]
    assert curve.reached_s == curve.points[-1].train_s
    times = [point.train_s for point in curve.points]
    assert times == sorted(times)
    assert all(point.samples % 4 == 0 for point in curve.points)


def test_the_time_of_evaluation_is_not_that_of_training(write_workload, run_plan):
    """However long `evaluate` takes, the training was as short."""
    path = write_workload(COUNTED.replace("model.eval()", "time.sleep(1.0)"))
    curve = run_plan(path, quality=request(2.0)).quality
    assert curve.reached_s < 1.0


def test_a_training_that_does_not_reach_its_target_ends_in_time(write_workload, run_plan):
    """Its last point says how far it came."""
    result = run_plan(write_workload(COUNTED), quality=request(1e9, limit_s=1.0))
    assert result.outcome is Outcome.OK
    assert result.quality.reached_s is None
    assert result.quality.best_within(60.0) == result.quality.points[-1].value


def test_a_training_ends_after_the_time_that_others_had(write_workload, run_plan):
    """However much is left: they would have learned more in that, too."""
    asked = replace(request(1e9), max_train_s=0.2)
    curve = run_plan(write_workload(COUNTED), quality=asked).quality
    assert 0.2 <= curve.train_s < 30.0


def test_a_model_trains_on_as_it_did_before_it_was_evaluated(write_workload, run_plan):
    """Also where `evaluate` leaves it in evaluation; and gradients are off meanwhile."""
    checked = """
        def compute_loss(model, batch):
            assert model.training and model[0].training
            x, y = batch
            return nn.functional.cross_entropy(model(x), y)

        def evaluate(model):
            assert not torch.is_grad_enabled()
            model.eval()
            return 1.0
    """
    result = run_plan(write_workload(checked), quality=request(2.0, limit_s=0.5))
    assert result.outcome is Outcome.OK, result.traceback


@pytest.mark.parametrize("returned", ["None", "'good'", "float('nan')", "(0.9, 1)"])
def test_what_is_no_number_is_the_workloads_mistake(returned, write_workload, run_plan):
    """It is named, with what to return."""
    path = write_workload(f"def evaluate(model): return {returned}\n")
    result = run_plan(path, quality=request(1.0))
    assert result.user_error
    assert "return a number, the higher the better" in result.error


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_nothing_is_compiled_for_evaluation(write_workload, run_plan):
    """A compiled plan evaluates as eagerly as the baseline does."""
    path = write_workload(
        """
        def evaluate(model):
            from torch._dynamo.utils import counters
            before = counters["stats"]["unique_graphs"]
            model.eval()
            model(torch.randn(7, 16))
            assert before and counters["stats"]["unique_graphs"] == before
            return 1.0
        """
    )
    result = run_plan(path, {"compile_mode": "default"}, quality=request(1.0))
    assert result.outcome is Outcome.OK, result.traceback
