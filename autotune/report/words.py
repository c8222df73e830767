"""Numbers, conclusions and commands in words: what the terminal and the pages both say."""

import shlex
from collections.abc import Sequence
from typing import Any

from autotune.clock import in_words
from autotune.storage.location import locate
from autotune.storage.records import RunRecord

UNKNOWN = "-"


def cell(value: object) -> str:
    """Return a value from the database for a table, on one line."""
    if value is None:
        return UNKNOWN
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def samples(throughput: float | None) -> str:
    """Return samples per second with four digits or more."""
    if throughput is None:
        return UNKNOWN
    return f"{throughput:.0f}" if throughput >= 1000 else f"{throughput:.4g}"


def gib(num_bytes: int | None) -> str:
    """Return a size in GiB."""
    return UNKNOWN if num_bytes is None else f"{num_bytes / 2**30:.2f}"


def percent(share: float | None) -> str:
    """Return a share in per cent."""
    return UNKNOWN if share is None else f"{share * 100:.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration: `8.2 s`, `2m 05s`, `1h 02m`."""
    return UNKNOWN if seconds is None else in_words(seconds)


def speedup(winner: dict[str, Any]) -> str:
    """Return `1.52x (1.50 to 1.54)`: the speed-up with its 95 % interval."""
    if winner["speedup"] is None:
        return UNKNOWN
    low, high = winner["speedup_low"], winner["speedup_high"]
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{winner['speedup']:.2f}x{interval}"


def changes_text(trial: dict[str, Any]) -> str:
    """Return `precision=bf16 workers=4`: what a trial changes, or `baseline` for nothing."""
    changed = {knob: change["value"] for knob, change in trial["changes"].items()}
    shown = [f"{knob}={value}" for knob, value in changed.items() if value is not None]
    return " ".join(shown) or "baseline"


def interval(measured: dict[str, Any]) -> str:
    """Return the half width of the 95 % interval over the mean, in per cent."""
    if not measured:
        return UNKNOWN
    half = (measured["throughput_high"] - measured["throughput_low"]) / 2
    return f"{half / measured['throughput'] * 100:.1f}"


def verdict(winner: dict[str, Any]) -> str:
    """Return what a run concluded, in one line."""
    if winner["kept_baseline"]:
        return f"Keep your baseline. {winner['how']}"
    if not winner["confirmed"]:
        return f"The best of the search, not confirmed. {winner['how']}"
    word = "Speed-up" if winner["speedup"] >= 1.0 else "Speed"
    return f"{word} {speedup(winner)}, 95 % interval. {winner['how']}"


def numerics(report: dict[str, Any]) -> str:
    """Return how single steps compared with those of the reference."""
    if report["unchecked"]:
        return str(report["summary"])
    outcome = "trains like the reference" if report["passed"] else "differs from the reference"
    return f"{outcome}: {report['summary']}"


def windows_measured(measured: dict[str, Any], windows: Sequence[dict[str, Any]]) -> str:
    """Return how many windows were timed, and what they gave."""
    if not windows:
        return UNKNOWN
    speeds = [window["throughput"] for window in windows]
    steps = sum(window["steps"] for window in windows)
    state = "settled" if measured["settled"] else "not settled within its time"
    state = "stopped early, clearly slower" if measured["raced"] else state
    span = f"{samples(min(speeds))} to {samples(max(speeds))} samples/s"
    took = duration(measured["measure_s"])
    return f"{len(windows)} with {steps} steps in {took}, {span}, {state}"


def again(run: RunRecord, number: int, storage: str | None) -> list[str]:
    """Return the commands that measure a trial's plan again."""
    file = f"trial-{number}.yaml"
    export = ["autotune", "export", run.name, "--trial", str(number), "-o", file]
    return [shlex.join([*export, *_stored_at(storage)]), _measure(run, file)]


def go_on(run: RunRecord, file: str, storage: str | None) -> list[str]:
    """Return the commands that show a finished run, and measure the plan that it wrote."""
    show = ["autotune", "show", run.name]
    return [shlex.join([*show, *_stored_at(storage)]), _measure(run, file)]


def _stored_at(storage: str | None) -> list[str]:
    return [] if storage is None else ["--storage", locate(storage).shown]


def _measure(run: RunRecord, file: str) -> str:
    return shlex.join(["autotune", "measure", run.new.workload_path, "--plan", file])
