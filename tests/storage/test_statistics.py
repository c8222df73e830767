"""What a run's trials say together, and pages of them, on every database."""

import random

import pytest

from autotune.errors import NotFoundError, UsageError
from autotune.report.as_json import diagnoses
from autotune.report.reading import read_run, read_trials
from autotune.search_space.bound import Bound
from autotune.search_space.plan import Plan
from autotune.storage.selection import Condition, count_trials, select_trials
from autotune.trials.diagnosis import Diagnosis
from autotune.trials.result import Outcome, Purpose, TrialResult

PRECISIONS = ("fp32", "tf32", "bf16")


@pytest.fixture
def run(store, new_run, measurement):
    """A run of 60 measured trials, some with equal speeds, and some that say nothing."""
    dice = random.Random(1)
    run = store.create_run(new_run())

    def finish(number, plan, result, purpose=Purpose.SAMPLER, num_ranks=1):
        store.start_trial(run.id, number, plan, purpose, "because", "", num_ranks=num_ranks)
        store.finish_trial(run.id, number, result, used_s=float(number))

    for number in range(1, 61):
        kind = dice.randrange(3)
        plan = Plan.of(
            {
                "precision": PRECISIONS[kind],
                "pin_memory": dice.random() < 0.5,
                "workers": dice.randrange(3),
                "style": "50%_off: 'x'" if number == 7 else "plain",
            }
        )
        speed = 100.0 * (kind + 1) + dice.randrange(5)
        memory = dice.randrange(1, 40) * 2**28
        measured = measurement(speed, peak_reserved_overall_bytes=memory)
        finish(number, plan, TrialResult(outcome=Outcome.OK, measurement=measured))
    plan = Plan.of({"precision": "fp8"})
    fast = TrialResult(outcome=Outcome.OK, measurement=measurement(1e6))
    finish(61, plan, TrialResult(outcome=Outcome.OOM, requested_bytes=2**40))
    finish(62, plan, fast, purpose=Purpose.NUMERICS)
    finish(63, plan, fast, num_ranks=2)
    store.start_trial(run.id, 64, plan, Purpose.SAMPLER, "because", "")
    return store.run(str(run.id))


def measured(store, run):
    return [(t, t.result.measurement) for t in store.trials(run.id) if t.number <= 60]


def test_outcomes_are_counted(store, run):
    """The most frequent first; trials in flight have no outcome yet."""
    assert list(store.statistics(run).outcomes().items()) == [
        ("ok", 62),
        ("oom", 1),
        ("in flight", 1),
    ]


def test_the_best_so_far_rises_and_only_candidates_count(store, run):
    """Numerics trials, failures and scouts on another number of ranks are not among them."""
    expected, best = [], 0.0
    for trial, measurement in measured(store, run):
        if measurement.throughput > best:
            best = measurement.throughput
            expected.append((trial.number, best))
    points = store.statistics(run).best_so_far()
    assert [(point.number, point.throughput) for point in points] == expected
    assert len(expected) > 2


def test_nothing_beats_the_front(store, run):
    """Each is slower than the one before it, and needs less memory."""
    known = [(m.throughput, m.memory_bytes) for _, m in measured(store, run)]
    unbeaten = {
        (speed, memory)
        for speed, memory in known
        if not any((s >= speed and m < memory) or (s > speed and m <= memory) for s, m in known)
    }
    front = store.statistics(run).front()
    assert [(p.throughput, p.memory_bytes) for p in front] == sorted(unbeaten, reverse=True)
    detail = read_run(store, run)
    assert [trial["number"] for trial in detail["front"]] == [point.number for point in front]


def test_a_sample_is_thinned_evenly(store, run):
    """All trials where there are few; else every k-th, so that no stretch of the run is lost."""
    statistics = store.statistics(run)
    assert [point.number for point in statistics.sample(60)] == list(range(1, 61))
    assert [point.number for point in statistics.sample(25)] == list(range(3, 61, 3))
    assert statistics.num_measured() == 60


def test_the_knob_that_matters_explains_the_spread(store, run):
    """Throughput here follows precision; a knob with one value for all explains nothing."""
    effects = {effect.knob: effect for effect in store.statistics(run).knob_effects(1000)}
    assert set(effects) == {"precision", "pin_memory", "workers", "style"}
    assert next(iter(effects)) == "precision"
    assert effects["precision"].explained > 0.99
    assert effects["pin_memory"].explained < 0.5
    assert {value.value for value in effects["pin_memory"].values} == {"true", "false"}
    for effect in effects["precision"].values:
        speeds = [
            m.throughput for t, m in measured(store, run) if t.plan["precision"] == effect.value
        ]
        assert (effect.num_trials, effect.slowest, effect.fastest) == (
            len(speeds),
            min(speeds),
            max(speeds),
        )
        assert effect.mean == pytest.approx(sum(speeds) / len(speeds))


def test_pages_of_trials_together_are_all_trials(store, run):
    """Each page goes on where the one before ended, fastest first, unknown speeds last."""
    pages = [
        read_trials(store, run, sort="throughput", limit=25, offset=offset)
        for offset in (0, 25, 50)
    ]
    assert [page["total"] for page in pages] == [64, 64, 64]
    numbers = [trial["number"] for page in pages for trial in page["items"]]
    whole = select_trials(store.url, run.id, sort="throughput")
    assert numbers == [row[whole.columns.index("number")] for row in whole.rows]
    assert sorted(numbers) == list(range(1, 65))
    assert set(numbers[-2:]) == {61, 64}


@pytest.mark.parametrize(
    ("column", "test", "value", "fits"),
    [
        ("precision", "equals", "bf16", lambda t: t.plan.get("precision", 0) == "bf16"),
        ("precision", "differs", "bf16", lambda t: t.plan.get("precision", 0) != "bf16"),
        ("precision", "contains", "F3", lambda t: t.plan.get("precision", 0) == "tf32"),
        ("pin_memory", "equals", "true", lambda t: t.plan.get("pin_memory", 0) is True),
        ("workers", "at_least", 1, lambda t: t.plan.get("workers", 0) >= 1),
        ("workers", "at_most", 1, lambda t: t.plan.get("workers", 9) <= 1),
        ("throughput", "is_unknown", None, lambda t: t.number in (61, 64)),
        ("style", "is_known", None, lambda t: t.number <= 60),
        ("style", "contains", "50%_off: 'x'", lambda t: t.number == 7),
        ("style", "equals", "' OR 1 = 1 --", lambda _: False),
    ],
)
def test_a_condition_means_what_it_says(store, run, column, test, value, fits):
    """Whatever signs are in its value."""
    condition = Condition(column=column, test=test, value=value)
    rows = select_trials(store.url, run.id, conditions=[condition])
    numbers = [row[rows.columns.index("number")] for row in rows.rows]
    assert numbers == [trial.number for trial in store.trials(run.id) if fits(trial)]
    assert count_trials(store.url, run.id, conditions=[condition]) == len(numbers)


def test_conditions_and_an_expression_all_hold(store, run):
    """An expression that ends in a comment does not swallow what follows."""
    condition = Condition(column="workers", test="equals", value=2)
    number = count_trials(
        store.url, run.id, where="precision = 'bf16' OR number = 61 -- all", conditions=[condition]
    )
    both = [
        t
        for t, _ in measured(store, run)
        if t.plan["workers"] == 2 and t.plan["precision"] == "bf16"
    ]
    assert number == len(both) > 0


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition(column="presision", test="equals", value=1), "did you mean 'precision'"),
        (Condition(column="precision", test="is", value=1), "no test 'is'"),
    ],
)
def test_a_condition_that_means_nothing_is_refused(store, run, condition, words):
    """With the columns or tests that there are."""
    with pytest.raises(UsageError, match=words):
        select_trials(store.url, run.id, conditions=[condition])


def test_a_trial_that_is_not_there_is_refused(store, run):
    """With the nearest number."""
    with pytest.raises(NotFoundError, match="has no trial 65; did you mean '6"):
        store.trial(run, 65)


def test_some_trials_come_in_the_order_asked_for(store, run):
    """Those that are gone are left out."""
    assert [t.number for t in store.some_trials(run.id, [9, 3, 99])] == [9, 3]


def test_what_limits_the_baseline_is_that_of_all_its_ranks(store, new_run, measurement):
    """The baseline of one-device trials, which came later, is another one."""
    run = store.create_run(new_run(options={"num_ranks": 4}))
    for number, (num_ranks, bound) in enumerate(((4, Bound.COMMUNICATION), (1, Bound.DATA)), 1):
        plan, result = (
            run.new.baseline,
            TrialResult(
                outcome=Outcome.OK, measurement=measurement(1.0), diagnosis=Diagnosis(bound=bound)
            ),
        )
        store.start_trial(run.id, number, plan, Purpose.BASELINE, "", "", num_ranks=num_ranks)
        store.finish_trial(run.id, number, result, used_s=float(number))
    assert diagnoses(run, store.trials(run.id))["baseline"]["bound"] == "communication"


def test_dots_are_all_trials(store, run):
    """Measured, failed, on fewer ranks, and in flight; of many, every k-th."""
    dots = {dot.number: dot for dot in store.statistics(run).dots(1000)}
    assert list(dots) == list(range(1, 65))
    for trial, found in measured(store, run):
        dot = dots[trial.number]
        assert (dot.throughput, dot.low) == (found.throughput, found.throughput_low)
        assert (dot.memory_bytes, dot.plan) == (found.memory_bytes, trial.plan)
    assert (dots[61].outcome, dots[61].throughput) == (Outcome.OOM, None)
    assert (dots[62].purpose, dots[63].num_ranks) == (Purpose.NUMERICS, 2)
    assert (dots[64].outcome, dots[64].finished_at) == (None, None)
    thinned = [dot.number for dot in store.statistics(run).dots(20)]
    assert thinned == list(range(4, 65, 4))


def test_trials_have_neighbours(store, run):
    """By number; the first and the last have one."""
    statistics = store.statistics(run)
    assert statistics.neighbours(1) == (None, 2)
    assert statistics.neighbours(30) == (29, 31)
    assert statistics.neighbours(64) == (63, None)


def test_a_run_tells_what_runs_and_when_something_ended(store, run, new_run):
    """Nothing of other runs, and nothing before anything ended."""
    assert [trial.number for trial in store.in_flight(run.id)] == [64]
    ended = [trial.finished_at for trial in store.trials(run.id) if trial.finished_at]
    assert store.statistics(run).last_end() == max(ended)
    other = store.create_run(new_run())
    assert store.in_flight(other.id) == []
    assert store.statistics(other).last_end() is None
