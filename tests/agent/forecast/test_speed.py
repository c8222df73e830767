"""The speed that is expected of a plan, and how sure that is."""

import pytest

from autotune.agent.forecast.speed import Forecast
from autotune.search_space.space import build_space
from tests.agent.histories import SPACE, history
from tests.agent.world import CPU, GPT, GPU, ok


def test_one_setting_is_blamed_for_what_several_fell_short_by():
    """Half precision, which promised most on this CPU, and not the optimizer beside it."""
    space = build_space(GPT, CPU)
    own, both = ({}, ok(50.0)), {"precision": "bf16", "optimizer_impl": "fused"}
    plans = [space.plan({name: value}) for name, value in both.items()]
    half, fused = Forecast(history(own, space=space), CPU).of(plans)
    assert half.throughput > fused.throughput > 54
    half, fused = Forecast(history(own, (both, ok(35.0)), space=space), CPU).of(plans)
    assert half.throughput < 36
    assert fused.throughput > 54


def test_a_forecast_learns_what_settings_are_worth():
    """What was measured of a setting alone is expected of it beside others."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(60.0)))
    plan = SPACE.plan({"precision": "bf16", "pin_memory": True})
    (unaware,) = Forecast(history(({}, ok(50.0))), GPU).of([plan])
    (aware,) = Forecast(seen, GPU).of([plan])
    assert unaware.throughput > 150
    assert aware.throughput == pytest.approx(60 * 1.03, rel=0.05)
    assert aware.log_std < unaware.log_std


def test_a_forecast_is_sure_of_what_was_measured():
    """A measured plan's outlook is its measurement."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)))
    (outlook,) = Forecast(seen, GPU).of([SPACE.plan({"precision": "bf16"})])
    assert outlook.throughput == pytest.approx(300.0, rel=0.02)
    assert outlook.log_std < 0.03


def test_running_plans_are_not_what_one_learns_from():
    """A plan under way makes its neighbours no faster and no slower, only better known soon."""
    plan = SPACE.plan({"precision": "bf16", "optimizer_impl": "fused"})
    (alone,) = Forecast(history(({}, ok(50.0))), GPU).of([plan])
    running = history(({}, ok(50.0)), pending=[{"precision": "bf16"}])
    (beside,) = Forecast(running, GPU).of([plan])
    assert beside.throughput == pytest.approx(alone.throughput)
    assert beside.log_std < alone.log_std


def test_a_noisy_machine_is_recognised_by_what_cannot_be_explained():
    """Changes that hardly matter and scatter widely show how much processes vary."""
    prefetch = [{"workers": 1, "prefetch": count} for count in (2, 4, 8)]
    speeds = (40.0, 70.0, 45.0)
    noisy = history(({}, ok(60.0)), *zip(prefetch, map(ok, speeds), strict=True))
    quiet = history(({}, ok(60.0)), *((change, ok(60.0)) for change in prefetch))
    plan = SPACE.plan({"workers": 1, "prefetch": 4})
    (in_noise,), (in_quiet,) = (Forecast(seen, GPU).of([plan]) for seen in (noisy, quiet))
    assert in_noise.throughput < 65
    assert in_noise.log_std > 2 * in_quiet.log_std
