"""The baseline comes first: the user's own configuration, or the nearest one that runs here."""

from autotune.agent.done import Done
from autotune.agent.history import MAX_LOST, History
from autotune.agent.proposal import Proposal
from autotune.errors import NothingRanError, WorkloadError
from autotune.search_space.knobs.ranks import LEAST_MEMORY_SHARDING, is_fsdp
from autotune.search_space.plan import Plan
from autotune.search_space.site import on_ranks
from autotune.search_space.space import Space
from autotune.trials.result import Outcome, Purpose, TrialResult

# Outcomes of a baseline that end the run, as they come from the user's code.
_USER_CODE_FAILURES = (Outcome.CRASH, Outcome.INVALID, Outcome.COMPILE_ERROR, Outcome.DIVERGED)


def next_baseline(history: History) -> Proposal | None:
    """Return the baseline to run next, or None once one ran.

    Raises:
        NothingRanError: when no smaller batch is left to try.
    """
    if history.baseline is not None:
        return None
    failed = _replaceable(history)
    if not failed:
        own, reason = history.space.baseline, "your own configuration, to compare with"
        return Proposal(plan=own, purpose=Purpose.BASELINE, reason=reason)
    lighter = _lighter_plan(failed, history)
    if lighter is None:
        raise NothingRanError(_too_large(failed, history))
    return Proposal(plan=lighter, purpose=Purpose.BASELINE, reason=_how_it_failed(failed[-1]))


def check_baseline(trial: Done, history: History, budget_s: float) -> None:
    """End the run by an error if the baseline failed for good.

    A baseline that ran out of memory is followed by a lighter one, and so is one that failed with
    a sharding that the user did not ask for.

    Raises:
        WorkloadError: the user's code fails, with their traceback.
        NothingRanError: it took too long, or the machine failed twice.
    """
    result = trial.result
    if result.outcome in _USER_CODE_FAILURES and not _has_other_sharding(trial, history):
        raise WorkloadError(_failure(result), result.traceback or result.log_tail)
    if result.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED):
        raise NothingRanError(_too_slow(result, budget_s))
    infra = [t for t in history.of(Purpose.BASELINE) if t.result.outcome is Outcome.INFRA]
    if len(infra) >= MAX_LOST:
        raise NothingRanError(
            f"the machine failed the baseline {len(infra)} times: {result.error}; "
            "`autotune doctor` checks it"
        )


def why_no_baseline(history: History) -> str | None:
    """Return why no baseline can run, None while one still may.

    The one-device trials ask this: without their baseline the run goes on to its next stage.
    """
    ended = [t for t in history.of(Purpose.BASELINE) if t.result.outcome is not Outcome.CANCELLED]
    if not ended or history.baseline is not None:
        return None
    result, ranks = ended[-1].result, on_ranks(history.space.num_ranks) or " on one device"
    if result.outcome is Outcome.OOM:
        batch = ended[-1].plan["batch_size"]
        too_large = f"the model does not fit{ranks}, not at batch_size={batch} either"
        return None if _lighter_plan(_replaceable(history), history) else too_large
    num_infra = sum(trial.result.outcome is Outcome.INFRA for trial in ended)
    if result.outcome is Outcome.INFRA and num_infra < MAX_LOST:
        return None
    return f"the baseline fails{ranks} ({result.outcome.value}: {result.error})"


def _replaceable(history: History) -> list[Done]:
    """Return the failed baselines that a plan with less memory or plain sharding may replace."""
    return [
        trial
        for trial in history.of(Purpose.BASELINE)
        if trial.result.outcome is Outcome.OOM
        or (trial.result.outcome in _USER_CODE_FAILURES and _has_other_sharding(trial, history))
    ]


def _has_other_sharding(trial: Done, history: History) -> bool:
    """Whether the trial has another sharding than the user's; their code may not support it."""
    return trial.plan.get("sharding", "") != history.space.baseline.get("sharding", "")


def _lighter_plan(failed: list[Done], history: History) -> Plan | None:
    """Return a baseline that needs less memory than the failed ones, None when there is none.

    Sharding everything is tried before smaller batches.
    """
    if all(trial.result.outcome is Outcome.OOM for trial in failed):
        return _fully_sharded(failed[-1], history) or _with_half_batch(failed[-1], history)
    return _with_half_batch(
        [t for t in failed if not _has_other_sharding(t, history)][-1], history
    )


def _fully_sharded(trial: Done, history: History) -> Plan | None:
    """Return the trial's plan with the sharding that needs least memory, None if impossible.

    Sharding leaves the training as it is, so it comes before a smaller batch.
    """
    domain = history.space.by_name.get("sharding")
    if domain is None or is_fsdp(trial.plan) or LEAST_MEMORY_SHARDING not in domain.values:
        return None
    return history.space.possible({"sharding": LEAST_MEMORY_SHARDING}, trial.plan)


def _how_it_failed(trial: Done) -> str:
    plan, result = trial.plan, trial.result
    sharded = f" with {plan['sharding']}" if "sharding" in plan else ""
    held = f"batch {plan['batch_size']}{sharded}"
    if result.outcome is Outcome.OOM:
        return f"{held} ran out of memory"
    return f"{held} cannot run ({result.outcome.value}: {result.error})"


def _with_half_batch(trial: Done, history: History) -> Plan | None:
    size = _half_batch(int(trial.plan["batch_size"]), history.space)
    if size is None or not history.space.by_name["batch_size"].varies:
        return None
    return history.space.plan({"batch_size": size}, trial.plan)


def _half_batch(batch: int, space: Space) -> int | None:
    share = (space.facts.global_batch_size or 0) // space.num_ranks
    return next((size for size in range(batch // 2, 0, -1) if share % size == 0), None)


def _too_large(failed: list[Done], history: History) -> str:
    batch = int(failed[-1].plan["batch_size"])
    held = "" if _half_batch(batch, history.space) is None else ", and batch_size may not vary"
    others = [_how_it_failed(t) for t in failed if t.result.outcome is not Outcome.OOM]
    beside = "".join(f"; {other}" for other in others)
    return (
        f"the baseline needs more memory than there is at batch_size={batch}{held}{beside}; "
        f"set a smaller BATCH_SIZE, {_offload_hint(history)}use a smaller model, or a device with "
        "more memory"
    )


def _offload_hint(history: History) -> str:
    """Return how to keep the parameters on the host where that is held back, else nothing."""
    is_held_back = "--allow" in history.space.out.get("parameter_offload", "")
    if not is_held_back:
        return ""
    return "keep the parameters in the memory of the host by --fix parameter_offload=host, "


def _failure(result: TrialResult) -> str:
    where = result.phase.value.replace("_", " ")
    return (
        f"your own configuration fails ({result.outcome.value}) in phase {where}: {result.error}; "
        "mend that first, `autotune measure` on the same file runs it alone"
    )


def _too_slow(result: TrialResult, budget_s: float) -> str:
    where, lasted_s = result.phase.value.replace("_", " "), result.total_s or 0.0
    # Six trials of this length are the least that a search with a confirmation needs.
    needed_s = max(2 * budget_s, 6 * lasted_s)
    return (
        f"the baseline was not measured: it was stopped in phase {where} after {lasted_s:.0f} s "
        f"({result.error}); try --budget {needed_s:.0f}s, or a smaller model or dataset"
    )
