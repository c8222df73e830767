"""The shares of a step's time, from a diagnosis or from a measurement."""

from collections.abc import Mapping
from typing import Any

from autotune.report.diagnosis import SHARES

REST = "computing and the rest"


def shares(trial: Mapping[str, Any]) -> dict[str, float] | None:
    """Return `{part: share of 1}` for the step of a `trial_view`; None without a measurement.

    Without a diagnosis, the parts are waiting for data, communication if known, and the rest.
    """
    diagnosis = trial["diagnosis"]
    if diagnosis is not None and any(diagnosis["shares"].values()):
        known = {words: diagnosis["shares"][name] for name, words in SHARES.items()}
        return {words: share for words, share in known.items() if share}
    return _measured(trial["measurement"])


def _measured(measured: Mapping[str, Any] | None) -> dict[str, float] | None:
    if measured is None or measured["data_wait_share"] is None:
        return None
    known = {SHARES["data"]: measured["data_wait_share"]}
    if measured["exposed_comm_share"] is not None:
        known[SHARES["communication"]] = measured["exposed_comm_share"]
    return {**known, REST: max(1.0 - sum(known.values()), 0.0)}
