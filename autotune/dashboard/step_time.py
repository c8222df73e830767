"""How a step's time divides, as far as it was measured."""

from collections.abc import Mapping
from typing import Any

REST = "computing and the rest"


def shares(trial: Mapping[str, Any]) -> dict[str, float] | None:
    """Return `{part: share of the step}` of a `trial_view`; None without a measurement."""
    measured = trial["measurement"]
    if measured is None or measured["data_wait_share"] is None:
        return None
    known = {"waiting for data": measured["data_wait_share"]}
    if measured["exposed_comm_share"] is not None:
        known["exposed communication"] = measured["exposed_comm_share"]
    return {**known, REST: max(1.0 - sum(known.values()), 0.0)}
