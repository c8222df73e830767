"""When sampled plans that gain nothing end the search."""

from autotune.agent.settings import SearchSettings
from autotune.agent.stopping import gains_nothing
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE, history
from tests.agent.world import GPT, GPU, ok

SETTINGS = SearchSettings(budget_s=900.0)
FEW = build_space(GPT, GPU, Narrowing(knobs=("precision", "workers")))


def ending(num_sampled, space, speed=50.0):
    """Return what ends the search after so many sampled plans as fast as the baseline.

    After them comes one more of the given speed.
    """
    sampled = [({"workers": 2}, ok(50.0), Purpose.SAMPLER)] * num_sampled
    last = ({"workers": 4}, ok(speed), Purpose.SAMPLER)
    return gains_nothing(history(({}, ok(50.0)), *sampled, last, space=space), SETTINGS)


def test_eight_sampled_plans_without_a_gain_end_the_search_among_few_knobs():
    """Fewer show too little, however small the space is."""
    assert ending(6, FEW) is None
    assert "the last 8 sampled plans did not" in ending(7, FEW)


def test_among_more_knobs_it_takes_as_many_plans_as_there_are_knobs():
    """A space of many knobs is not given up sooner than each could have been drawn once."""
    varying = sum(domain.varies for domain in SPACE.domains)
    assert varying > 8
    assert ending(varying - 2, SPACE) is None
    assert f"the last {varying} sampled plans did not" in ending(varying - 1, SPACE)


def test_a_sampled_plan_that_gains_lets_the_search_go_on():
    """What came before it is no sign that the best has been found."""
    assert ending(20, FEW, speed=50.2) is not None
    assert ending(20, FEW, speed=52.0) is None
