"""Writes numbers, conclusions and commands as text, for the terminal and the dashboard."""

import shlex
from collections.abc import Sequence
from typing import Any

from autotune.clock import in_words
from autotune.search_space.command import ACCUMULATION_FLAGS, BATCH_FLAGS, Command, MadeLoader
from autotune.search_space.plan import Value, spell
from autotune.storage.location import locate
from autotune.storage.records import RunRecord
from autotune.storage.statistics import IN_FLIGHT
from autotune.trials.result import Outcome, Phase, Purpose
from autotune.units import gib as number_of_gib
from autotune.units import size_in_words

UNKNOWN = "-"  # stands for None

_KINDS = {
    Purpose.BASELINE: "baseline",
    Purpose.PRESET: "first guess",
    Purpose.LADDER: "batch",
    Purpose.NEIGHBOUR: "variation",
    Purpose.SAMPLER: "sample",
    Purpose.CONFIRM: "measured again",
    Purpose.ABLATE: "what is it worth",
    Purpose.MEASURE: "one plan",
    Purpose.NUMERICS: "check of numerics",
    Purpose.QUALITY: "training to the target",
}
_ENDINGS = {
    Outcome.OK: "ok",
    Outcome.OOM: "out of memory",
    Outcome.TIMEOUT: "timed out",
    Outcome.COMPILE_ERROR: "compile error",
    Outcome.CRASH: "crashed",
    Outcome.DIVERGED: "diverged",
    Outcome.INVALID: "invalid",
    Outcome.INFRA: "machine lost",
    Outcome.CANCELLED: "cancelled",
}
_PHASES = {
    Phase.START: "starting",
    Phase.RENDEZVOUS: "ranks meet",
    Phase.BUILD: "building",
    Phase.FIRST_STEP: "first step",
    Phase.WARM_UP: "warming up",
    Phase.MEASURE: "measuring",
    Phase.DIAGNOSE: "looking at what limits it",
    Phase.COMPARE: "comparing steps",
}


def peak_memory(num_bytes: int | None, longest_batch_of: int | None) -> str:
    """Return the peak as text, and among how many samples the longest batch was looked for."""
    if longest_batch_of is None:
        return size(num_bytes)
    return f"{size(num_bytes)}, with a batch of the longest of {longest_batch_of} samples"


def left_uncompiled(recompile_limit_hits: int) -> str:
    """Return in words that the compiler gave up on functions."""
    functions = "1 function" if recompile_limit_hits == 1 else f"{recompile_limit_hits} functions"
    return f"{functions}, compiled too often before; the log names each, and what differed"


def cell(value: object) -> str:
    """Return any value from the store as text on one line, for a cell of a table."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return spell(value)
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def knob_value(value: Value | None) -> str:
    """Return a knob's value as `--fix` and plan files take it: `true`, `64`, `bf16`."""
    return UNKNOWN if value is None else spell(value)


def samples(throughput: float | None) -> str:
    """Return a throughput in samples per second, with four significant digits or more."""
    if throughput is None:
        return UNKNOWN
    return f"{throughput:,.0f}" if throughput >= 1000 else f"{throughput:.4g}"


def gib(num_bytes: int | None) -> str:
    """Return a size in GiB without the unit, for a column that names it."""
    return UNKNOWN if num_bytes is None else number_of_gib(num_bytes)


def size(num_bytes: int | None) -> str:
    """Return a size with its unit: `1.25 GiB`, `512 MiB`."""
    return UNKNOWN if num_bytes is None else size_in_words(num_bytes)


def percent(share: float | None) -> str:
    """Return a share of 1 in per cent, without the sign."""
    return UNKNOWN if share is None else f"{share * 100:.1f}"


def other_work(share: float | None) -> str:
    """Return the share of a script's time that is not training, in words."""
    return UNKNOWN if share is None else f"{percent(share)} % of the time, left out of all figures"


def duration(seconds: float | None) -> str:
    """Return a duration with its unit: `8.2 s`, `2m 05s`, `1h 02m`."""
    return UNKNOWN if seconds is None else in_words(seconds)


def speedup(winner: dict[str, Any]) -> str:
    """Return a winner's speed-up with its 95 % interval: `1.52x (1.50 to 1.54)`."""
    if winner["speedup"] is None:
        return UNKNOWN
    low, high = winner["speedup_low"], winner["speedup_high"]
    bounds = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{winner['speedup']:.2f}x{bounds}"


def changes_text(trial: dict[str, Any]) -> str:
    """Return how a trial's plan differs from the baseline: `precision=bf16 workers=4`.

    The baseline itself is `baseline`.
    """
    values = {knob: change["value"] for knob, change in trial["changes"].items()}
    shown = [f"{knob}={spell(value)}" for knob, value in values.items() if value is not None]
    return " ".join(shown) or "baseline"


def half_width_percent(measured: dict[str, Any]) -> str:
    """Return half the width of the throughput's 95 % interval, in per cent of the throughput."""
    if not measured:
        return UNKNOWN
    half = (measured["throughput_high"] - measured["throughput_low"]) / 2
    return f"{half / measured['throughput'] * 100:.1f}"


def expectation(promise: dict[str, Any]) -> str:
    """Return what the search expected of a trial before it ran, in words."""
    return (
        f"{samples(promise['throughput'])} samples/s, a gain with a chance of "
        f"{promise['chance']:.0%}, in {duration(promise['seconds'])}"
    )


def kind(purpose: str) -> str:
    """Return what a trial is for, in words: `first guess`."""
    return _KINDS[Purpose(purpose)]


def ending(outcome: Outcome | None, *, raced: bool = False) -> str:
    """Return how a trial ended, in words: `out of memory`."""
    if outcome is None:
        return IN_FLIGHT
    return "cut short" if raced else _ENDINGS[outcome]


def phase_words(phase: Phase) -> str:
    """Return what a running trial does, in words: `first step`."""
    return _PHASES[phase]


def numerics(report: dict[str, Any]) -> str:
    """Return the result of a numerics check: how single steps compare with the reference's."""
    if report["unchecked"]:
        return str(report["summary"])
    outcome = "trains like the reference" if report["passed"] else "differs from the reference"
    return f"{outcome}: {report['summary']}"


def quality_words(curve: dict[str, Any]) -> str:
    """Return how a training to a target ended, in words."""
    last, target = curve["points"][-1], curve["target"]
    trained = f"{last['train_s']:.1f} s of training on {last['samples']:,} samples"
    if curve["reached_s"] is not None:
        return f"evaluate(model) reached {target:g} after {trained}"
    return f"evaluate(model) did not reach {target:g}: {last['value']:.4g} after {trained}"


def windows_measured(measured: dict[str, Any], windows: Sequence[dict[str, Any]]) -> str:
    """Return the number of windows, their steps and time, and their slowest and fastest speed."""
    if not windows:
        return UNKNOWN
    speeds = [window["throughput"] for window in windows]
    steps = sum(window["steps"] for window in windows)
    state = "settled" if measured["settled"] else "not settled within its time"
    state = "stopped early, clearly slower" if measured["raced"] else state
    span = f"{samples(min(speeds))} to {samples(max(speeds))} samples/s"
    took = duration(measured["measure_s"])
    return f"{len(windows)} with {steps} steps in {took}, {span}, {state}"


def commands_to_measure_again(run: RunRecord, number: int, storage: str | None) -> list[str]:
    """Return the commands that export a trial's plan and measure it."""
    file = f"trial-{number}.yaml"
    export = ["autotune", "export", run.name, "--trial", str(number), "-o", file]
    return [shlex.join([*export, *_storage_option(storage)]), _measure_command(run, file)]


def commands_after(run: RunRecord, file: str, storage: str | None) -> list[str]:
    """Return the two commands after a run: one that uses its plan file, one that shows it."""
    show = shlex.join(["autotune", "show", run.name, *_storage_option(storage)])
    command = _command_of(run)
    if command is None:
        return [_measure_command(run, file), show]
    argv = command.argv if run.winner is None else command.under(run.winner.plan)
    return [shlex.join(["autotune", "exec", "--plan", file, "--", *argv]), show]


def _storage_option(storage: str | None) -> list[str]:
    return [] if storage is None else ["--storage", locate(storage).shown]


def _measure_command(run: RunRecord, file: str) -> str:
    command = _command_of(run)
    if command is None:
        return shlex.join(["autotune", "measure", run.new.workload_path, "--plan", file])
    found = (*BATCH_FLAGS, *ACCUMULATION_FLAGS)  # by themselves
    given = [(k, flag) for k, flag in command.bindings if MadeLoader.parse(flag) is None]
    binds = [f"{k}={flag}" for k, flag in given if flag not in found]
    options = [word for bind in binds for word in ("--bind", bind)]
    options += [word for flag in command.output_flags for word in ("--output-flag", flag)]
    return shlex.join(["autotune", "measure", *options, "--plan", file, "--", *command.argv])


def command_line(run: RunRecord) -> str | None:
    """Return the command that a run tunes, as it was typed; None for a workload's functions."""
    command = _command_of(run)
    return None if command is None else shlex.join(command.argv)


def _command_of(run: RunRecord) -> Command | None:
    command = run.new.facts.get("command")
    return None if command is None else Command.from_dict(command)
