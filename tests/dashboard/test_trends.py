"""The page of trends, in a real browser, over points of two months."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe

from autotune.search_space.plan import Plan
from autotune.storage.sql import open_store
from autotune.storage.testing import make_trend_point
from tests.dashboard.conftest import serving
from tests.dashboard.test_accessibility import SERIOUS

LEVELS = [1000.0] * 8 + [850.0] * 8


@pytest.fixture(scope="module")
def trends_address(tmp_path_factory, browser):
    """A dashboard over a workload that became slower with its ninth commit."""
    folder = tmp_path_factory.mktemp("trends")
    with closing(open_store(str(folder / "autotune.db"))) as store:
        for number, level in enumerate(LEVELS):
            at = datetime(2026, 10, 1, tzinfo=UTC) + timedelta(days=number)
            point = make_trend_point(
                level + number % 3,
                commit_hash=f"{number:02d}" * 20,
                commit_subject=f"change {number}",
                committed_at=at,
                measured_at=at,
                is_drop=number in (8, 9),
                plan=Plan.of({"batch_size": 32 if number < 15 else 64}),
            )
            store.trends.keep(point)
    with serving(folder) as address:
        yield address.rstrip("/")


def test_a_trend_shows_its_levels_and_compares_points(trends_address, open_page, keep):
    """From the list of workloads; the two points are in the address."""
    page = open_page(f"{trends_address}/trends")
    page.get_by_role("link", name="model.py").click()
    page.get_by_role("heading", name="Trend of model.py").wait_for()
    for name in ("throughput", "memory", "first-step"):
        page.locator(f"#trend-{name} .main-svg").first.wait_for()
    shapes = "document.querySelector('#trend-throughput .js-plotly-plot').layout.shapes"
    assert [at[:13] for at in page.evaluate(f"{shapes}.map(s => s.x0)")] == ["2026-10-08T12"]
    page.locator("#trend-a").click()
    page.get_by_role("option", name="1: 000000000").click()
    page.wait_for_url("**a=1&b=16**")
    row = page.locator("main tr", has=page.get_by_role("rowheader", name="batch_size"))
    assert row.locator("td").all_inner_texts() == ["32", "64"]
    keep(page, "trend")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(trends_address, open_page, scheme):
    """As on the other pages."""
    address = f"{trends_address}/trends?workload=model.py&device=a+device&ranks=1"
    page = open_page(address, color_scheme=scheme)
    page.locator("#trend-first-step .main-svg").first.wait_for()
    found = Axe().run(page).response["violations"]
    assert [(f["id"], f["nodes"][0]["html"]) for f in found if f["impact"] in SERIOUS] == []


def test_an_unknown_trend_is_told_in_words(trends_address, open_page):
    """The message says where to choose one."""
    page = open_page(f"{trends_address}/trends?workload=nobody.py&device=x&ranks=1")
    page.get_by_text("there is no trend of nobody.py on x").wait_for()
