"""Which runs are the same."""

from pathlib import Path

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.agent.request import TuneRequest
from autotune.agent.session import _key
from autotune.search_space.target import Target
from tests.agent.histories import SPACE
from tests.agent.world import GPU


def test_a_run_with_another_objective_does_not_go_on():
    """What makes runs the same has the objective with all its numbers in it."""
    objectives = (
        FASTEST,
        TimeToTrain(samples=1000),
        TimeToTrain(samples=2000),
        LeastMemory(min_throughput=10.0),
        LeastMemory(min_share=0.1),
    )
    asked = [
        TuneRequest(target=Target(path=Path("/w/model.py")), budget_s=60.0, objective=one)
        for one in objectives
    ]
    keys = {_key(request, GPU, SPACE) for request in (*asked, *asked)}
    assert len(keys) == len(objectives)
