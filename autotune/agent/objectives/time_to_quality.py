"""The objective `time-to-quality`: the least training time until `evaluate` reaches a target.

The search looks for throughput. The plans that it ends with are then trained to the target.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.agent.objectives.objective import Figures, ObjectiveName
from autotune.agent.objectives.throughput import Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToQuality(Throughput):
    """The least training time until the workload's `evaluate(model)` returns `target` or more.

    Attributes:
        target: the quality to reach; higher is better.
    """

    target: float
    name: ClassVar[ObjectiveName] = ObjectiveName.TIME_TO_QUALITY

    @property
    def words(self) -> str:
        """The objective in words."""
        return f"the least training time until evaluate(model) returns {self.target:g} or more"

    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return that no plan was faster, so that none was trained to the target."""
        return (
            "no plan that may win was faster than your configuration, so none was trained to "
            f"evaluate(model) = {self.target:g}"
        )

    def options(self) -> dict[str, Any]:
        """Return the target."""
        return {"target": self.target}
