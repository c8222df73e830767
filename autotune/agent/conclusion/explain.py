"""Why each setting of the winner may be better, and the remarks for the user about it."""

from autotune.agent.conclusion.confirm import reverted_knobs
from autotune.agent.conclusion.finalists import mixed_loss, unconfirmed_ablations_ahead
from autotune.agent.conclusion.numerics import numerics_remark
from autotune.agent.history import History
from autotune.search_space.changes import changes, describe_changes
from autotune.search_space.knobs import CATALOGUE
from autotune.search_space.knobs.loader import LENGTH_BUCKETING, groups_by_length
from autotune.search_space.plan import Plan
from autotune.search_space.site import on_ranks

TRAINING_CHANGES = "the training changes"
"""Begins each remark about what a plan changes in the training itself."""

_MUCH_OTHER_WORK = 0.05  # share of a script's time that is worth a remark


def reasons(plan: Plan, history: History) -> dict[str, str]:
    """Return for each setting that `plan` changes why it may make the training better."""
    baseline = history.reference.values
    return {
        name: history.space.knob(name).reasons.why(value, baseline.get(name))
        for name, value in changes(plan, history.reference).items()
        if value is not None
    }


def remarks(plan: Plan, history: History) -> tuple[str, ...]:
    """Return the remarks about a winner, one line each."""
    lines = [
        _batch_remark(plan, history),
        _grouping_remark(plan, history),
        _better_without_remark(plan, history),
        numerics_remark(plan, history),
        _uncompiled_remark(plan, history),
    ]
    return tuple(line for line in (*baseline_remarks(history), *lines) if line)


def baseline_remarks(history: History) -> tuple[str, ...]:
    """Return the remarks about the baseline, which hold whatever wins."""
    lines = [
        _smaller_batch_remark(history),
        _other_work_remark(history),
        _allowance_remark(history),
    ]
    return tuple(line for line in lines if line)


def _smaller_batch_remark(history: History) -> str | None:
    """Return the remark that the user's batch did not fit, so the baseline's is smaller."""
    baseline, own = history.baseline, history.space.baseline
    if baseline is None or baseline.plan == own:
        return None
    instead = describe_changes(baseline.plan, own)
    return f"your batch_size={own['batch_size']} ran out of memory here; the baseline is {instead}"


def _other_work_remark(history: History) -> str | None:
    """Return the remark that a script does much beside training, which figures leave out."""
    measurement = history.baseline.result.measurement if history.baseline else None
    share = measurement.other_work_share if measurement else None
    if share is None or share < _MUCH_OTHER_WORK:
        return None
    return (
        f"the script spent {share:.0%} of its time on something else than training, as validating "
        "and saving; all figures leave that out"
    )


def _allowance_remark(history: History) -> str | None:
    """Return how to allow a guarded value that acts on what limits the baseline's step."""
    bound = history.diagnosis.bound if history.diagnosis else None
    for knob in CATALOGUE:
        is_held_back = "--allow" in history.space.out.get(knob.name, "")
        if knob.reasons.allow and bound in knob.acts_on and is_held_back:
            return knob.reasons.allow
    return None


def _better_without_remark(plan: Plan, history: History) -> str | None:
    """Return which setting the winner may do without, where no time was left to confirm that."""
    ahead = unconfirmed_ablations_ahead(history)
    found = [name for name, without in reverted_knobs(plan, history) if without in ahead]
    if not found:
        return None
    return (
        f"it may be better without {' or without '.join(found)}: measured once, no time was left "
        "to confirm that; give a longer --budget"
    )


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
    kept_by = "set GLOBAL_BATCH_SIZE, or " if has_functions and not mixed_loss(history) else ""
    return (
        f"{TRAINING_CHANGES}: {changed}; {rule}, or keep it: {kept_by}give --fix batch_size={own}"
    )


def _uncompiled_remark(plan: Plan, history: History) -> str | None:
    """Return that the compiler left a part of the winner uncompiled, or None."""
    measured = history.measured.get(plan)
    if measured is None or not measured.recompile_limit_hits:
        return None
    return (
        "the compiler met more kinds of inputs than it compiles one function for (8 by default), "
        "so a part of the model runs eagerly: the log of its trial names the function"
    )


def _grouping_remark(plan: Plan, history: History) -> str | None:
    """Return what it changes that the samples of a batch have similar lengths, or None."""
    if groups_by_length(plan) == groups_by_length(history.space.baseline):
        return None
    return (
        f"{TRAINING_CHANGES}: a batch holds samples of similar length, not any; each epoch still "
        f"holds each of them once. Leave out --allow {LENGTH_BUCKETING.name} to keep your batches"
    )


def _accumulated_remark(plan: Plan, history: History) -> str | None:
    """Return what another micro-batch changes although the global batch is kept, or None."""
    batch, own = plan["batch_size"], history.space.baseline["batch_size"]
    if (mixed := mixed_loss(history)) is not None:
        return (
            f"{TRAINING_CHANGES} although GLOBAL_BATCH_SIZE is kept, as {mixed}; "
            f"--fix batch_size={own} keeps it"
        )
    norms = f"the batch norms see {batch} samples at a time instead of {own}"
    return f"{TRAINING_CHANGES} a little: {norms}" if history.space.facts.has_batch_norm else None
