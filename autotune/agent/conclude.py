"""The conclusion of a run: the winner, or the honest "keep your baseline"."""

from dataclasses import replace

from autotune.agent.explain import baseline_remarks, changes, remarks
from autotune.agent.finalists import Confirmed, choose, confirmations, confirmed, disqualified
from autotune.agent.history import Done, History
from autotune.errors import NothingRanError
from autotune.search_space.plan import describe_diff
from autotune.storage.records import Winner


def conclude(history: History, gain: float) -> Winner:
    """Return what the trials say, confirmed where the confirmation allows it.

    Raises:
        NothingRanError: when not even the baseline was measured.
    """
    baseline = _baseline(history)
    winner = choose(history, gain)
    if winner is not None:
        return _confirmed_winner(winner, baseline, history)
    candidates = confirmed(history)
    if candidates:
        return _keep_after_confirmation(candidates[0], baseline, history)
    if any(_may_win(trial, baseline, history) for trial in history.ranking):
        why = "not confirmed: no time was left to measure it again; give a longer --budget"
        return unconfirmed(history, why)
    if history.measured.keys() == {baseline.plan}:
        return _keep(baseline, history, "nothing but your own configuration was measured")
    return _keep(baseline, history, "no plan that may win was faster than your configuration")


def unconfirmed(history: History, why: str) -> Winner:
    """Return the best of the search, which one process each measured, as not confirmed.

    Raises:
        NothingRanError: when not even the baseline was measured.
    """
    baseline = _baseline(history)
    sound = [t for t in history.ranking if _may_win(t, baseline, history)]
    best = sound[0] if sound else baseline
    return Winner(
        plan=best.plan,
        kept_baseline=best is baseline,
        confirmed=False,
        speedup=None,
        speedup_low=None,
        speedup_high=None,
        throughput=best.throughput,
        baseline_throughput=baseline.throughput,
        memory_bytes=_memory(best),
        baseline_memory_bytes=_memory(baseline),
        how="one process each, in the search; the fastest of many looks faster than it is",
        changes={} if best is baseline else changes(best.plan, history),
        remarks=(why, *remarks(best.plan, history)),
    )


def _confirmed_winner(winner: Confirmed, baseline: Done, history: History) -> Winner:
    again = confirmations(baseline.plan, history)
    return Winner(
        plan=winner.plan,
        kept_baseline=False,
        confirmed=True,
        speedup=winner.speedup.ratio,
        speedup_low=winner.speedup.low,
        speedup_high=winner.speedup.high,
        throughput=winner.throughput,
        baseline_throughput=winner.throughput / winner.speedup.ratio,
        memory_bytes=winner.memory_bytes,
        baseline_memory_bytes=max((m.memory_bytes or 0 for m in again), default=0) or None,
        how=winner.speedup.how,
        changes=changes(winner.plan, history),
        remarks=(*remarks(winner.plan, history), *_disqualified(history)),
    )


def _keep_after_confirmation(best: Confirmed, baseline: Done, history: History) -> Winner:
    interval = f"{best.speedup.ratio:.3f} [{best.speedup.low:.3f}, {best.speedup.high:.3f}]"
    shown = describe_diff(best.plan, baseline.plan)
    why = f"keep your baseline: the best other plan ({shown}) is {interval} times as fast"
    kept = _keep(baseline, history, why)
    return replace(
        kept,
        confirmed=True,
        speedup=1.0,
        speedup_low=1.0,
        speedup_high=1.0,
        throughput=best.throughput / best.speedup.ratio,
        baseline_throughput=best.throughput / best.speedup.ratio,
        how=best.speedup.how,
    )


def _keep(baseline: Done, history: History, why: str) -> Winner:
    return Winner(
        plan=baseline.plan,
        kept_baseline=True,
        confirmed=False,
        speedup=None,
        speedup_low=None,
        speedup_high=None,
        throughput=baseline.throughput,
        baseline_throughput=baseline.throughput,
        memory_bytes=_memory(baseline),
        baseline_memory_bytes=_memory(baseline),
        how="one process, in the search; nothing was left to confirm",
        remarks=(why, *baseline_remarks(history), *_disqualified(history)),
    )


def _disqualified(history: History) -> tuple[str, ...]:
    plans = dict.fromkeys(trial.plan for trial in history.ranking)
    found = [(plan, disqualified(plan, history)) for plan in plans]
    shown = [(describe_diff(plan, history.space.baseline), why) for plan, why in found if why]
    return tuple(f"passed over, although fast: {plan}: {why}" for plan, why in shown)


def _may_win(trial: Done, baseline: Done, history: History) -> bool:
    return trial.throughput > baseline.throughput and not disqualified(trial.plan, history)


def _baseline(history: History) -> Done:
    if history.baseline is None:
        raise NothingRanError(
            "not even the baseline was measured in the time given; give a longer --budget"
        )
    return history.baseline


def _memory(trial: Done) -> int | None:
    measurement = trial.result.measurement
    return None if measurement is None else measurement.memory_bytes
