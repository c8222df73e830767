"""What `--dry-run` shows."""

import pytest

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.agent.preview import first_trials
from tests.agent.histories import SPACE
from tests.agent.world import GPU


def test_the_preview_starts_with_the_baseline_and_the_checklist():
    """`--dry-run` shows what a run would start with."""
    planned = first_trials(SPACE, GPU, 900.0)
    assert [trial["purpose"] for trial in planned[:2]] == ["baseline", "preset"]
    assert "precision=bf16" in planned[1]["change"]


@pytest.mark.parametrize("objective", [TimeToTrain(samples=100_000), LeastMemory(min_share=0.9)])
def test_a_preview_has_the_objective(objective):
    """`--dry-run` starts with the baseline and goes on with what the objective asks for."""
    planned = first_trials(SPACE, GPU, 900.0, objective=objective)
    assert planned[0]["purpose"] == "baseline"
    assert len(planned) > 1
    assert "of the" in planned[1]["reason"]
