"""Which plans need a numerics check, what a check compares with, and its result in words."""

from autotune.agent.forecast.durations import check_s
from autotune.agent.forecast.memory import chance_to_fit
from autotune.agent.history import History, conclusive
from autotune.agent.proposal import Proposal
from autotune.search_space.knobs import is_compiled
from autotune.search_space.knobs.batch import FOLLOWS_BATCH
from autotune.search_space.knobs.loader import groups_by_length
from autotune.search_space.knobs.ranks import casts_blocks
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome, Purpose

_LIKELY = 0.5  # least probability that the eager fp32 twin fits in memory for it to be tried


def next_check(plan: Plan, history: History) -> Proposal | None:
    """Return the check to run for `plan`, None if it needs none or has had one.

    A compiled program depends on the batch, so it is checked at the plan's. If eager fp32, which
    needs more memory than most winners, does not fit at that batch or takes longer there than
    compiling once more, or if nothing is compiled or recorded, the check runs at the baseline's,
    with the same other settings: large batches make it long.
    """
    if not needs_check(plan, history):
        return None
    ran, smaller = conclusive(history.verdicts.checks(plan)), _at_baseline_batch(plan, history)
    if not ran:
        own = _is_program(plan) and _can_check_at_own_batch(plan, smaller, history)
        return _check(plan if own else smaller, history)
    if (
        ran[-1].result.outcome is Outcome.OOM
        and ran[-1].plan["batch_size"] != smaller["batch_size"]
    ):
        return _check(smaller, history)
    return None


def _is_program(plan: Plan) -> bool:
    return is_compiled(plan) or plan.get("cuda_graph", "off") != "off"


def _can_check_at_own_batch(plan: Plan, smaller: Plan, history: History) -> bool:
    hardware = history.space.site.hardware
    fits = chance_to_fit(reference(plan, history), history) > _LIKELY
    if not fits or not is_compiled(plan):  # recording takes no time
        return fits
    return check_s(plan, history, hardware) <= check_s(smaller, history, hardware)


def needs_check(plan: Plan, history: History) -> bool:
    """Whether the plan changes settings other than the batch that affect the numbers."""
    baseline = history.space.baseline
    settings = history.verdicts.signature(baseline)
    is_cast = casts_blocks(plan) != casts_blocks(baseline)
    return is_cast or any(plan.get(name, value) != value for name, value in settings)


def is_unchecked(plan: Plan, history: History) -> bool:
    """Whether the plan needs a check and no check could compare anything."""
    return needs_check(plan, history) and not history.verdicts.has_report(plan)


def numerics_remark(plan: Plan, history: History) -> str:
    """Return what is known about the plan's numerics, in one line for the user."""
    if not needs_check(plan, history):
        but = _change_of_batches(plan, history)
        return f"numerics: nothing to check, {but}every changed setting computes the same numbers"
    ran = history.verdicts.checks(plan)
    if not ran:
        return "numerics not checked: the run ended before it; a longer --budget has the time"
    result, report = ran[-1].result, ran[-1].result.numerics
    if report is None:
        return f"numerics not checked: the check ended as {result.outcome.value} ({result.error})"
    if report.unchecked:
        return f"numerics not checked: {report.unchecked}"
    batch = ran[-1].plan["batch_size"]
    where = "" if batch == plan["batch_size"] else f", at batch {batch}"
    return f"numerics: {report.summary}{where}"


def _change_of_batches(plan: Plan, history: History) -> str:
    """Return what the plan changes in batches, as the beginning of a remark; empty for nothing."""
    if plan["batch_size"] != history.space.baseline["batch_size"]:
        return "but for the batch size, "
    if groups_by_length(plan) != groups_by_length(history.space.baseline):
        return "but for which samples are in a batch together, "
    return ""


def reference(plan: Plan, history: History) -> Plan:
    """Return the eager fp32 twin at the plan's batch of the baseline that ran.

    The plan's checkpointing is kept, as it changes no number and the twin needs the memory; so are
    the workload's own knobs, because their effect on the numbers is the user's decision.
    """
    # The check is against eager fp32, so it is about these knobs and no others.
    kept = FOLLOWS_BATCH | {"activation_checkpointing"} | set(dict(history.space.facts.user_knobs))
    eager: dict[str, Value] = {"compile_mode": "off", "precision": "fp32"}
    baseline = history.reference
    values = {**baseline.values, **eager}
    values |= {name: value for name, value in plan.items if name in kept}
    twin, known = Plan.of(values), history.space.by_name
    return Plan.of({n: v for n, v in twin.items if n in known and known[n].knob.active(twin)})


def _check(plan: Plan, history: History) -> Proposal:
    return Proposal(
        plan=plan,
        purpose=Purpose.NUMERICS,
        reason="are its steps those of eager fp32 from the same weights?",
        compare_with=reference(plan, history),
    )


def _at_baseline_batch(plan: Plan, history: History) -> Plan:
    batch = history.baseline.plan["batch_size"] if history.baseline else plan["batch_size"]
    smaller = history.space.possible({"batch_size": batch}, plan)
    # The accumulation it needs may exclude static_graph, which changes no number.
    return smaller or history.space.adopt(Plan.of({**plan.values, "batch_size": batch}))
