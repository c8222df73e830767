"""Whether a diagnosis can be believed: other programs make it that of another machine."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autotune.dispatch.others import OthersLoad
from autotune.trials.diagnosis import Diagnosis
from autotune.trials.result import Measurement

# Part of the cores, or of a device's time, from which other programs change what limits a step.
_BUSY = 0.25
# The fastest over the slowest window from which a machine is not steady.
_UNSTEADY = 2.0


def why_in_doubt(measured: Measurement, loads: Iterable[OthersLoad]) -> str | None:
    """Return in words why a diagnosis cannot tell what limits the step, None if it can.

    Args:
        measured: the trial that was diagnosed.
        loads: what other programs used before it and after it.
    """
    reasons = [*dict.fromkeys(busy_words(loads)), *_unsteady(measured)]
    if not reasons:
        return None
    return f"{' and '.join(reasons)}; try again when nothing else runs on this machine"


def in_doubt(diagnosis: Diagnosis, why: str) -> Diagnosis:
    """Return the diagnosis without what cannot be told: the bound, and advice about it."""
    unknown = {**diagnosis.unknown, "bound": why}
    return replace(diagnosis, bound=None, advice=(), unknown=unknown)


def busy_words(loads: Iterable[OthersLoad]) -> Iterator[str]:
    """Yield what other programs used of the machine, where that is much."""
    found = list(loads)
    busiest = max(found, key=lambda load: load.cores, default=None)
    if busiest and busiest.cores >= _BUSY * busiest.num_cores:
        yield f"other programs used {busiest.cores:.1f} of {busiest.num_cores} cores"
    share = max((load.device_share or 0.0 for load in found), default=0.0)
    if share >= _BUSY:
        yield f"other programs used a GPU for {share:.0%} of the time"


def _unsteady(measured: Measurement) -> Iterator[str]:
    speeds = [window.throughput for window in measured.windows]
    if len(speeds) > 1 and max(speeds) >= _UNSTEADY * min(speeds):
        yield (
            f"the speed went from {min(speeds):,.4g} to {max(speeds):,.4g} samples/s within one "
            "measurement"
        )
