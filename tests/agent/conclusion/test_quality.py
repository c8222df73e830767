"""Which plans are trained to a target, and which of them wins."""

from dataclasses import replace

import pytest

from autotune.agent.conclusion.quality import Contest, conclude_by_quality, contestants
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.agent.settings import SearchSettings
from autotune.trials.quality import QualityCurve, QualityPoint
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.histories import OOM, SPACE, history_for
from tests.agent.world import ok

TARGET = TimeToQuality(target=0.9)
SETTINGS = SearchSettings(budget_s=600.0, objective=TARGET, seed=7)
LARGE = {"batch_size": 64, "precision": "bf16"}
SAME = {"precision": "bf16"}
AGAIN = tuple(
    (values, ok(speed), Purpose.CONFIRM)
    for _ in range(2)
    for values, speed in (({}, 50.0), (LARGE, 200.0), (SAME, 100.0))
)
FOUND = (({}, ok(50.0)), (LARGE, ok(200.0)), (SAME, ok(100.0)), *AGAIN)


def trained(values, *points):
    """Return a training to the target with these points of seconds and quality."""
    curve = QualityCurve(
        target=0.9,
        points=tuple(QualityPoint(train_s=s, samples=int(100 * s), value=v) for s, v in points),
    )
    return values, TrialResult(outcome=Outcome.OK, quality=curve), Purpose.QUALITY


def seen(*trainings, trials=FOUND):
    return history_for(TARGET, *trials, *trainings)


def test_the_winner_of_another_batch_the_best_of_the_own_and_the_baseline_are_trained():
    """A larger batch has to earn its place."""
    plans = [SPACE.plan(values) for values in (LARGE, SAME, {})]
    assert contestants(seen(), 0.01) == plans


def test_a_winner_of_the_own_batch_and_the_baseline_are_trained():
    """It takes the same steps, so nothing stands between it and the baseline."""
    trials = (({}, ok(50.0)), (SAME, ok(100.0)))
    assert contestants(seen(trials=trials), 0.01) == [SPACE.plan(SAME), SPACE.plan({})]


def test_the_best_of_the_own_batch_may_come_from_finding_out_what_the_batch_is_worth():
    """Where the search tried no other plan with it."""
    trials = (({}, ok(50.0)), (LARGE, ok(200.0)), (SAME, ok(100.0), Purpose.ABLATE))
    assert SPACE.plan(SAME) in contestants(seen(trials=trials), 0.01)


def test_nothing_is_trained_where_nothing_is_faster():
    """The advice is to keep the baseline anyway."""
    alone = seen(trials=(({}, ok(50.0)),))
    assert contestants(alone, 0.01) == []
    assert Contest(settings=SETTINGS).next(alone, 600.0) is None
    assert conclude_by_quality(alone, SETTINGS).kept_baseline


def test_each_is_trained_once_in_a_share_of_what_is_left():
    """Also by a run that goes on in the middle of them."""
    contest, so_far = Contest(settings=SETTINGS), []
    for values, left_s in ((LARGE, 180.0), (SAME, 120.0), ({}, 60.0)):
        proposal = contest.next(seen(*so_far), left_s)
        assert proposal.plan == SPACE.plan(values)
        assert proposal.purpose is Purpose.QUALITY
        assert proposal.quality.target == 0.9
        assert 40.0 < proposal.quality.limit_s < 60.0
        so_far.append(trained(values, (10.0, 0.95)))
    assert contest.next(seen(*so_far), 60.0) is None
    assert contest.next(seen(), 10.0) is None


def test_other_objectives_train_nothing_to_a_target():
    """Their budget is theirs."""
    usual = SearchSettings(budget_s=600.0)
    assert Contest(settings=usual).next(seen(), 600.0) is None
    assert (usual.quality_s, SETTINGS.quality_s) == (0.0, 180.0)


def test_nobody_is_trained_for_longer_than_one_that_did_not_reach_the_target():
    """With as much time, that one might have reached it sooner."""
    contest, short = Contest(settings=SETTINGS), trained(LARGE, (5.0, 0.6), (30.0, 0.8))
    assert contest.next(seen(short), 500.0).quality.max_train_s == 30.0
    reached = trained(LARGE, (5.0, 0.6), (30.0, 0.95))
    assert contest.next(seen(reached), 500.0).quality.max_train_s is None


WON = {
    "fastest": ((10.0, 20.0, 40.0), LARGE, 10.0),
    "own batch": ((30.0, 20.0, 40.0), SAME, 20.0),
    "baseline": ((60.0, 50.0, 40.0), {}, 40.0),
}


@pytest.mark.parametrize("case", WON)
def test_the_plan_that_reaches_the_target_first_wins(case):
    """Whatever its throughput is; its time and the baseline's are kept with it."""
    reached, values, train_s = WON[case]
    trainings = [
        trained(plan, (1.0, 0.3), (seconds, 0.92))
        for plan, seconds in zip((LARGE, SAME, {}), reached, strict=True)
    ]
    winner = conclude_by_quality(seen(*trainings), SETTINGS)
    assert winner.plan == SPACE.plan(values)
    assert winner.kept_baseline == (values == {})
    assert winner.confirmed
    assert (winner.own.train_s, winner.baseline.train_s) == (train_s, 40.0)
    assert winner.own.throughput == pytest.approx({10.0: 200, 20.0: 100, 40.0: 50}[train_s])
    assert winner.remarks[0].startswith(
        "training time until evaluate(model) returned 0.9 or more, without compilation and "
        f"evaluation, one training each with seed 7: batch_size=64 precision=bf16: {reached[0]} s"
    )
    assert winner.remarks[0].endswith("your baseline: 40.0 s")


def test_a_plan_that_does_not_reach_the_target_does_not_win():
    """The remark says how far it came, and how long that took."""
    short = trained(LARGE, (20.0, 0.7), (40.0, 0.81))
    rest = [trained(SAME, (39.0, 0.9)), (*OOM_OF_BASELINE,)]
    winner = conclude_by_quality(seen(short, *rest), SETTINGS)
    assert winner.plan == SPACE.plan(SAME)
    assert winner.baseline.train_s is None
    assert "not reached: 0.81 after 40.0 s" in winner.remarks[0]
    assert "your baseline: not trained, as it ended as oom (out of memory)" in winner.remarks[0]


OOM_OF_BASELINE = ({}, OOM, Purpose.QUALITY)


def test_where_none_reaches_the_target_the_best_quality_wins_without_a_time():
    """Nothing is said to be quicker."""
    trainings = [
        trained(values, (40.0, best)) for values, best in ((LARGE, 0.5), (SAME, 0.8), ({}, 0.7))
    ]
    winner = conclude_by_quality(seen(*trainings), SETTINGS)
    assert winner.plan == SPACE.plan(SAME)
    assert winner.own.train_s is None


def test_where_none_reaches_the_target_quality_is_compared_after_as_much_training():
    """A training that had more time does not win by that."""
    trainings = [
        trained(LARGE, (10.0, 0.7), (20.0, 0.8)),
        trained(SAME, (10.0, 0.6), (20.0, 0.75), (40.0, 0.85)),
        trained({}, (10.0, 0.1)),
    ]
    assert conclude_by_quality(seen(*trainings), SETTINGS).plan == SPACE.plan(LARGE)


def test_what_had_no_time_to_be_trained_is_said():
    """The winner is then the fastest, and by its speed alone."""
    winner = conclude_by_quality(seen(), SETTINGS)
    assert winner.plan == SPACE.plan(LARGE)
    assert "not trained for lack of time; give a longer --budget" in winner.remarks[0]


def test_a_plan_of_the_own_batch_that_was_measured_once_is_not_confirmed():
    """It wins by its training, and its speed is that of one process."""
    trials = (({}, ok(50.0)), (LARGE, ok(200.0)), (SAME, ok(100.0)), *AGAIN[:2], *AGAIN[3:5])
    trainings = [trained(LARGE, (30.0, 0.9)), trained(SAME, (20.0, 0.9)), trained({}, (40.0, 0.9))]
    winner = conclude_by_quality(seen(*trainings, trials=trials), SETTINGS)
    assert winner.plan == SPACE.plan(SAME)
    assert not winner.confirmed
    assert replace(winner, remarks=()).speedup is None
