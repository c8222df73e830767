"""Reads objectives that runs have stored."""

from collections.abc import Mapping
from typing import Any

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.objective import Objective, ObjectiveName
from autotune.agent.objectives.throughput import Throughput
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.agent.objectives.time_to_train import TimeToTrain


def objective_from(values: Mapping[str, Any]) -> Objective:
    """Return the objective that `to_dict` described; without a name it is throughput."""
    name = ObjectiveName(values.get("name", ObjectiveName.THROUGHPUT))
    if name is ObjectiveName.TIME_TO_TRAIN:
        return TimeToTrain(samples=values["train_samples"])
    if name is ObjectiveName.MEMORY:
        share = values.get("min_throughput_share")
        return LeastMemory(min_throughput=values.get("min_throughput"), min_share=share)
    if name is ObjectiveName.TIME_TO_QUALITY:
        return TimeToQuality(target=values["target"])
    return Throughput()
