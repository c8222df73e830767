"""The effect of each setting of the winner, and the remarks for the user about it."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator

from autotune.agent.conclusion.confirm import reverted_knobs
from autotune.agent.conclusion.finalists import mixed_loss, unconfirmed_ablations_ahead
from autotune.agent.conclusion.numerics import numerics_remark
from autotune.agent.forecast.speed import Forecast, deviation
from autotune.agent.history import History
from autotune.search_space.knobs import CATALOGUE
from autotune.search_space.plan import Plan, Value, describe_diff, spell
from autotune.search_space.site import on_ranks
from autotune.trials.result import Measurement, Purpose

_SURE = 1.96  # standard deviations on each side of a 95 % interval


def changes(plan: Plan, history: History) -> dict[str, str]:
    """Return for each setting that `plan` changes its measured effect, or the reason for it."""
    between = _between_processes(history)
    flips = reverted_knobs(plan, history)
    told = {name: _worth(name, plan, without, history, between) for name, without in flips}
    # Settings that follow from others, such as accumulation, have no effect of their own.
    rest = {name: old for name, old in _changed(plan, history) if name not in told}
    return told | {name: _why(name, plan[name], old, history) for name, old in rest.items()}


def remarks(plan: Plan, history: History) -> tuple[str, ...]:
    """Return the remarks about a winner, one line each."""
    lines = [numerics_remark(plan, history), _batch_remark(plan, history)]
    return tuple(line for line in (*baseline_remarks(history), *lines) if line)


def baseline_remarks(history: History) -> tuple[str, ...]:
    """Return the remarks about the baseline, which hold whatever wins."""
    lines = [_smaller_batch_remark(history), _allowance_remark(history)]
    return tuple(line for line in lines if line)


def _smaller_batch_remark(history: History) -> str | None:
    """Return the remark that the user's batch did not fit, so the baseline's is smaller."""
    baseline, own = history.baseline, history.space.baseline
    if baseline is None or baseline.plan == own:
        return None
    instead = describe_diff(baseline.plan, own)
    return f"your batch_size={own['batch_size']} ran out of memory here; the baseline is {instead}"


def _allowance_remark(history: History) -> str | None:
    """Return how to allow a guarded value that acts on what limits the baseline's step."""
    bound = history.diagnosis.bound if history.diagnosis else None
    for knob in CATALOGUE:
        is_held_back = "--allow" in history.space.out.get(knob.name, "")
        if knob.reasons.allow and bound in knob.acts_on and is_held_back:
            return knob.reasons.allow
    return None


def _why(name: str, value: Value, instead_of: Value | None, history: History) -> str:
    return history.space.knob(name).reasons.why(value, instead_of)


def _spelled(value: Value | None) -> str:
    return "none" if value is None else spell(value)


def _changed(plan: Plan, history: History) -> Iterator[tuple[str, Value]]:
    baseline = history.reference
    for name, old in baseline.items:
        if name in plan and plan[name] != old:
            yield name, old


def _worth(name: str, plan: Plan, without: Plan, history: History, process_std: float) -> str:
    """Return in words the effect of one setting, as measured against the plan `without` it."""
    ours, theirs = history.measured.get(plan), history.measured.get(without)
    old = without.values.get(name)
    if ours is None or theirs is None:
        does = _why(name, plan[name], old, history)
        return f"{does}; {_origin(name, plan, history)}, not measured alone"
    noise = _noise(ours, theirs, process_std)
    effect = history.objective.effect(
        history.figures_of(plan, ours.throughput, ours.memory_bytes),
        history.figures_of(without, theirs.throughput, theirs.memory_bytes),
    )
    # A trial that was stopped early ran slower; by how much is only roughly known.
    bound = "about " if theirs.raced else ""
    worth = f"{bound}{effect} over {name}={_spelled(old)}, all else equal (one process each)"
    if noise is not None and not history.objective.weighs_memory:
        worth = f"no effect that noise does not explain: {worth}, and two processes of one plan "
        worth += f"may differ by {noise:.0%}"
    if without in unconfirmed_ablations_ahead(history):
        worth += "; better without it, but no time was left to confirm that"
    return worth


def _noise(ours: Measurement, theirs: Measurement, process_std: float) -> float | None:
    """Return by what part two processes may differ by noise; None if these differ by more."""
    noise = math.hypot(*(deviation(m, process_std) for m in (ours, theirs)))
    if abs(math.log(ours.throughput / theirs.throughput)) > _SURE * noise:
        return None
    return math.expm1(_SURE * noise)


def _between_processes(history: History) -> float:
    """Return the standard deviation of a plan's log throughput between processes.

    It is the fitted one, or that of the plans that ran several times where that is larger.
    """
    fitted = Forecast(history, history.space.site.hardware).process_std
    logs: dict[Plan, list[float]] = defaultdict(list)
    for trial in (*history.search, *history.of(Purpose.CONFIRM)):
        if trial.result.measurement is not None and not trial.result.measurement.raced:
            logs[trial.plan].append(math.log(trial.result.measurement.throughput))
    repeated = [values for values in logs.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    if not degrees:
        return fitted
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in repeated)
    return max(fitted, math.sqrt(squares / degrees))


def _origin(name: str, plan: Plan, history: History) -> str:
    """Return in words which trial first had the setting."""
    ran = (t for t in history.search if t.result.measurement is not None)
    first = next((t for t in ran if t.plan.values.get(name) == plan[name]), None)
    return f"came with trial {first.number}" if first else "came with the winner"


def _batch_remark(plan: Plan, history: History) -> str | None:
    """Return how another batch changes the training and how to scale the learning rate."""
    facts, num_ranks = history.space.facts, history.space.num_ranks
    batch, own = plan["batch_size"], history.space.baseline["batch_size"]
    if batch == own:
        return None
    if facts.global_batch_size is not None:
        return _accumulated_remark(plan, history)
    factor = float(batch) / float(own)
    if facts.optimizer_class == "SGD":
        rule = f"with SGD scale the learning rate by {factor:g} (linear rule)"
    else:
        rule = f"with {facts.optimizer_class} scale the learning rate by {factor**0.5:.3g} "
        rule += "(square-root rule)"
    changed = f"batch_size={batch} instead of {own}"
    if num_ranks > 1:
        all_ranks = f"{int(batch) * num_ranks} samples in a step instead of {int(own) * num_ranks}"
        changed += f"{on_ranks(num_ranks)}, so {all_ranks}"
    # Accumulation does not keep a loss that depends on which samples are together.
    has_functions = facts.command is None
    kept_by = "GLOBAL_BATCH_SIZE or " if has_functions and not mixed_loss(history) else ""
    return f"the training changes: {changed}; {rule}, or set {kept_by}--fix batch_size to keep it"


def _accumulated_remark(plan: Plan, history: History) -> str | None:
    """Return what another micro-batch changes although the global batch is kept, or None."""
    batch, own = plan["batch_size"], history.space.baseline["batch_size"]
    if (mixed := mixed_loss(history)) is not None:
        return (
            f"the training changes although GLOBAL_BATCH_SIZE is kept, as {mixed}; "
            f"--fix batch_size={own} keeps it"
        )
    norms = f"the batch norms see {batch} samples at a time instead of {own}"
    return (
        f"the training changes a little: {norms}" if history.space.facts.has_batch_norm else None
    )
