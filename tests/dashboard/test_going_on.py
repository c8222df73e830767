"""Pages beside a run that goes on, step by step: this process is its driver."""

from contextlib import closing
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from autotune.dashboard.devices import devices_now
from autotune.dashboard.live import phase_of
from autotune.storage.driver import this_driver
from autotune.storage.records import RunState
from autotune.storage.sql import open_store
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.dashboard.conftest import serving
from tests.dashboard.small_store import BASELINE, BF16, winner_of


@pytest.fixture
def store(tmp_path):
    """A store with a run that this process drives."""
    with closing(open_store(str(tmp_path / "autotune.db"))) as opened:
        opened.create_run(replace(make_run(name="going-on"), driver=this_driver(), budget_s=600.0))
        yield opened


def _measured(throughput):
    return TrialResult(outcome=Outcome.OK, measurement=make_measurement(throughput))


def _tile(page, name):
    """Return the number below a name."""
    return page.locator(f'#live p:text-is("{name}") + p').inner_text()


def test_a_running_run_says_what_it_does(tmp_path, store, open_page, keep):
    """Baseline, speed-up so far, time left, and each trial that runs; its curve goes on to now."""
    store.start_trial(1, 1, BASELINE, Purpose.BASELINE, "because", "")
    with serving(tmp_path) as address:
        page = open_page(f"{address}runs/1")
        page.locator("#live").get_by_text("Now measuring your own configuration.").wait_for()
        assert _tile(page, "Speed-up so far") == "-"
        store.finish_trial(1, 1, _measured(100.0), used_s=3.0)
        store.start_trial(1, 2, BF16, Purpose.PRESET, "because", "")
        page.locator("#live").get_by_text("Now searching.").wait_for()
        page.locator("#live").get_by_text("precision=bf16").wait_for()
        store.finish_trial(1, 2, _measured(250.0), used_s=6.0)
        page.locator("#live").get_by_text("2.50x").wait_for()
        assert (_tile(page, "Baseline"), _tile(page, "Best so far")) == ("100", "250")
        assert _tile(page, "Time left").startswith("9m")
        keep(page, "going-on")
        curve = "document.querySelector('#progress-chart .js-plotly-plot')?.data[0].x.at(-1)"
        page.locator("#progress-chart .main-svg").first.wait_for()
        before = page.evaluate(curve)
        page.wait_for_function(f"() => {curve} > {before}")
        store.finish_run(
            1, RunState.DONE, stop_reason="done", used_s=9.0, winner=winner_of(BF16, 2.5)
        )
        page.locator("#verdict").wait_for()
        expect(page.locator("#live")).to_be_empty(timeout=20_000)
        page.close()


def test_the_list_of_runs_keeps_itself_up_to_date(tmp_path, store, open_page):
    """New runs, the best so far, and the end of a run show without a reload."""
    with serving(tmp_path) as address:
        page = open_page(address)
        page.get_by_role("link", name="going-on").wait_for()
        page.evaluate("window.wasNotReloaded = true")
        for number, (plan, speed) in enumerate(((BASELINE, 100.0), (BF16, 250.0)), 1):
            purpose = Purpose.BASELINE if number == 1 else Purpose.PRESET
            store.start_trial(1, number, plan, purpose, "because", "")
            store.finish_trial(1, number, _measured(speed), used_s=3.0 * number)
        page.get_by_text("2.50x so far").wait_for()
        store.create_run(make_run(name="another"))
        page.get_by_role("link", name="another").wait_for()
        store.finish_run(
            1, RunState.DONE, stop_reason="done", used_s=9.0, winner=winner_of(BF16, 2.5)
        )
        page.get_by_text("2.50x (2.40 to 2.60)").wait_for()
        assert page.evaluate("window.wasNotReloaded")
        page.close()


def test_a_phase_has_words(store):
    """For each kind of trial that runs, and for none."""
    assert phase_of([]) == "choosing what to try next"
    for number, (purpose, words) in enumerate(
        (
            (Purpose.PRESET, "searching"),
            (Purpose.ABLATE, "finding out what each setting is worth"),
            (Purpose.NUMERICS, "checking the numerics of the best"),
            (Purpose.CONFIRM, "measuring the best again in fresh processes"),
        ),
        1,
    ):
        store.start_trial(1, number, BASELINE, purpose, "because", "")
        assert phase_of(store.in_flight(1)) == words


def test_devices_tell_their_memory():
    """As many as there are on this machine; none where there is no NVIDIA driver."""
    for device in devices_now():
        assert 0 <= device.used_bytes <= device.total_bytes
        assert device.utilisation is None or 0 <= device.utilisation <= 1
