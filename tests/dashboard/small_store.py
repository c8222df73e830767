"""A store that is made in no time, with a bit of everything."""

from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import RunState, Winner
from autotune.storage.sql import open_store
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.result import Outcome, Purpose, TrialResult

BASELINE = make_run().baseline
BF16 = Plan.of({**BASELINE.values, "precision": "bf16"})


def measured(throughput: float) -> TrialResult:
    """Return the result of a trial that gave so many samples/s."""
    return TrialResult(outcome=Outcome.OK, measurement=make_measurement(throughput))


def winner_of(plan: Plan, ratio: float) -> Winner:
    """Return a confirmed winner so many times as fast as a baseline of 100 samples/s."""
    return Winner(
        plan=plan,
        kept_baseline=False,
        confirmed=True,
        speedup=Interval(ratio=ratio, low=ratio - 0.1, high=ratio + 0.1),
        own=PlanFigures(throughput=100.0 * ratio, memory_bytes=2**30),
        baseline=PlanFigures(throughput=100.0, memory_bytes=2**31),
        how="3 fresh processes each",
    )


def fill(url: str) -> None:
    """Store a run with three trials and a winner, and a run that has just begun."""
    store = open_store(url)
    run = store.create_run(make_run(name="first"))
    results = (
        (BASELINE, Purpose.BASELINE, measured(100.0)),
        (BF16, Purpose.PRESET, measured(200.0)),
        (BF16, Purpose.SAMPLER, TrialResult(outcome=Outcome.OOM, error="out of <memory>")),
    )
    for number, (plan, purpose, result) in enumerate(results, 1):
        store.start_trial(run.id, number, plan, purpose, "because", f"logs/{number}.log")
        store.finish_trial(run.id, number, result, used_s=float(number))
    winner = winner_of(BF16, 2.0)
    store.finish_run(run.id, RunState.DONE, stop_reason="done", used_s=9.0, winner=winner)
    store.create_run(make_run(name="second"))
    store.close()
