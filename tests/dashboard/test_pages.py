"""Every page, in a real browser, over what real runs stored."""

import json
import re
import sqlite3
import urllib.request

import pytest

from autotune.report.words import gib, samples, speedup
from tests.dashboard.conftest import serving


@pytest.fixture(scope="module")
def run(address):
    """The first run as the API tells it, with its trials."""
    with urllib.request.urlopen(f"{address}/api/v1/runs/1") as answer:
        detail = json.load(answer)
    with urllib.request.urlopen(f"{address}/api/v1/runs/1/trials") as answer:
        return {**detail, "trials": json.load(answer)["items"]}


@pytest.fixture(scope="module")
def failed(run):
    """A trial of the value that raises."""
    return next(trial for trial in run["trials"] if trial["outcome"] == "crash")


HEADINGS = (
    "What to do next",
    "Best so far",
    "Throughput against memory",
    "All knobs at once",
    "What each knob does",
    "Failures",
    "Trials",
    "Plan",
)


def tile(page, name):
    """Return the number and the words of a tile on top of a run's page."""
    tile = page.locator(f'#top .mantine-Paper-root:has(> p:first-child:text-is("{name}"))')
    _, number, words = filter(None, tile.inner_text().splitlines())
    return number, words


def fact(page, name):
    """Return what stands beside a name on a trial's page."""
    term = page.locator("dt", has=page.get_by_text(name, exact=True))
    return term.locator("+ dd").inner_text()


def compared(page, name):
    """Return a line of a comparison, without its name."""
    line = page.locator("main tr", has=page.get_by_role("rowheader", name=name, exact=True))
    return line.locator("td").all_inner_texts()


def test_runs_lead_to_a_run(address, open_page, keep, run):
    """The list names state, baseline and winner; its links open without reloading."""
    page = open_page(address)
    rows = page.locator("main tbody tr")
    rows.first.wait_for()
    newest, first = (row.locator("td").all_inner_texts() for row in rows.all())
    assert (newest[1], first[1]) == ("second", "run-1")
    winner = run["run"]["winner"]
    assert first[2].lower() == "done"
    assert first[4:6] == [samples(winner["baseline_throughput"]), samples(winner["throughput"])]
    assert first[8] == str(len(run["trials"]))
    keep(page, "runs")
    page.get_by_role("link", name="run-1").click()
    page.get_by_role("heading", name="run-1").wait_for()
    assert page.url == f"{address}/runs/1"


def test_the_list_gives_the_speed_up_with_its_interval(h200_address, open_page):
    """Of a run that is sure of its winner; tests/data holds one."""
    with urllib.request.urlopen(f"{h200_address}/api/v1/runs/1") as answer:
        winner = json.load(answer)["run"]["winner"]
    page = open_page(h200_address)
    row = page.locator("main tbody tr", has=page.locator('a[href="/runs/1"]'))
    assert row.locator("td").nth(3).inner_text() == speedup(winner)


def test_a_run_is_shown_whole(address, open_page, keep, run):
    """Headline, progress, charts, effects, step time, failures, trials, plan."""
    page = open_page(f"{address}/runs/1")
    page.locator(".ag-row a").first.wait_for()
    winner = run["run"]["winner"]
    assert tile(page, "Baseline") == (samples(winner["baseline_throughput"]), "samples/s")
    assert winner["how"] in page.locator("#top").inner_text()
    for heading in HEADINGS:
        assert page.get_by_role("heading", name=heading, exact=True).count() == 1
    for section in ("#best", "#trade-off", "#knob-lines", "#step-time"):
        page.locator(f"{section} .js-plotly-plot .main-svg").first.wait_for()
    page.locator("#effects").get_by_text(re.compile("pause_ms|cannot tell")).first.wait_for()
    crashes = sum(trial["outcome"] == "crash" for trial in run["trials"])
    (failures,) = page.locator("#failures tbody tr").all()
    outcome, count, *_ = failures.locator("td").all_inner_texts()
    assert (outcome.lower(), count) == ("crash", str(crashes))
    value = page.locator("#plan-values tr", has_text="pause_ms").locator("td").nth(1)
    assert value.inner_text() == str(winner["plan"]["pause_ms"])
    keep(page, "run")


def test_a_winner_has_its_numbers_on_top(h200_address, open_page):
    """In a run that is sure of it, which says why, too; tests/data holds one."""
    with urllib.request.urlopen(f"{h200_address}/api/v1/runs/1") as answer:
        winner = json.load(answer)["run"]["winner"]
    page = open_page(f"{h200_address}/runs/1")
    assert tile(page, "Winner") == (samples(winner["throughput"]), "samples/s")
    assert tile(page, "Speed-up")[0] == f"{winner['speedup']:.2f}x"
    assert tile(page, "Peak memory")[0] == gib(winner["memory_bytes"])
    assert page.get_by_role("heading", name="Why", exact=True).count() == 1
    page.locator("#top .js-plotly-plot .main-svg").first.wait_for()


def test_the_trade_off_takes_the_colours_of_a_knob(address, open_page, keep):
    """Its legend names the values."""
    page = open_page(f"{address}/runs/1")
    page.locator("#trade-off .scatterlayer").wait_for()
    page.locator("#colour").click()
    page.get_by_role("option", name="pause_ms").click()
    page.locator("#trade-off").get_by_text("pause_ms=10").wait_for()
    keep(page, "run-coloured")


def test_a_dot_leads_to_its_trial(address, open_page):
    """Whoever sees an outlier wants to know what it was."""
    page = open_page(f"{address}/runs/1")
    # Plotly takes clicks on a sheet above its dots.
    page.locator("#trade-off .scatterlayer .point").last.click(force=True)
    page.get_by_role("heading", name=re.compile(r"Trial \d+")).wait_for()
    assert re.fullmatch(rf"{address}/runs/1/trials/\d+", page.url)


def test_the_table_sorts_and_filters_in_the_database(address, open_page, keep, run):
    """By a column's header, and by the box below it."""
    page = open_page(f"{address}/runs/1")
    page.locator(".ag-row a").first.wait_for()
    speeds = [t["measurement"]["throughput"] for t in run["trials"] if t["measurement"]]
    fastest = next(
        t["number"]
        for t in run["trials"]
        if t["measurement"] and t["measurement"]["throughput"] == max(speeds)
    )
    header = page.get_by_role("columnheader", name="Samples/s")
    header.click()
    header.click()
    first = page.locator('.ag-pinned-left-cols-container [row-index="0"] a')
    page.wait_for_function(
        "number => document.querySelector("
        "'.ag-pinned-left-cols-container [row-index=\"0\"] a')?.innerText == number",
        arg=str(fastest),
    )
    assert first.inner_text() == str(fastest)
    keep(page, "trials-sorted")
    page.get_by_label("Outcome Filter Input").fill("crash")
    crashes = sum(trial["outcome"] == "crash" for trial in run["trials"])
    shown = "count => dash_ag_grid.getApi('trials')?.getDisplayedRowCount() == count"
    page.wait_for_function(shown, arg=crashes)
    page.wait_for_url(re.compile("filter="))
    page.reload()
    page.get_by_label("Outcome Filter Input").wait_for()
    page.wait_for_function(shown, arg=crashes)
    assert page.get_by_label("Outcome Filter Input").input_value() == "crash"


def test_a_filter_that_nobody_made_is_left_out(address, open_page, run):
    page = open_page(f"{address}/runs/1?filter=%7B%22outcome%22:5%7D")
    page.locator(".ag-row a").first.wait_for()
    assert page.locator(".ag-pinned-left-cols-container .ag-row").count() == len(run["trials"])


def test_columns_are_chosen(address, open_page, keep):
    """Any column of a trial, knobs included."""
    page = open_page(f"{address}/runs/1")
    page.locator(".ag-row a").first.wait_for()
    page.locator("#columns").click()
    page.get_by_role("option", name="pause_ms", exact=True).click()
    header = page.get_by_role("columnheader", name="pause_ms")
    header.wait_for(state="attached")
    keep(page, "trials-columns")


def test_selected_trials_are_compared(address, open_page, keep, run):
    """Two ticks and a click lead to both side by side."""
    page = open_page(f"{address}/runs/1")
    page.locator(".ag-row a").first.wait_for()  # before, a row is there but empty
    boxes = page.locator('.ag-row [type="checkbox"]')
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("link", name="Compare 2 trials").click()
    page.get_by_role("link", name="Trial 1 of run 1").wait_for()
    page.get_by_role("link", name="Trial 2 of run 1").wait_for()
    both = run["trials"][:2]
    assert compared(page, "pause_ms") == [str(trial["plan"]["pause_ms"]) for trial in both]
    assert compared(page, "Outcome") == [trial["outcome"] for trial in both]
    keep(page, "compare-trials")


def test_runs_are_compared(address, open_page, keep, run):
    """The form leads to an address that can be kept."""
    page = open_page(f"{address}/compare")
    page.get_by_label("Runs").fill("1,second")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("link", name="second").wait_for()
    assert page.url == f"{address}/compare?runs=1,second"
    winner = run["run"]["winner"]
    assert compared(page, "Winner (samples/s)") == [samples(winner["throughput"]), "-"]
    keep(page, "compare-runs")


def test_a_measured_trial_is_shown_whole(address, open_page, keep, run):
    """Reason, throughput with its interval, windows as a chart, the plan, how to measure it."""
    measured = next(trial for trial in run["trials"] if trial["measurement"])
    page = open_page(f"{address}/runs/1/trials/{measured['number']}")
    page.locator("#windows-chart .main-svg").first.wait_for()
    found = measured["measurement"]
    interval = f"{samples(found['throughput_low'])} to {samples(found['throughput_high'])}"
    assert fact(page, "Reason") == measured["reason"]
    expected = f"{samples(found['throughput'])} samples/s ({interval}, 95 %)"
    assert fact(page, "Throughput") == expected
    text = page.locator("main").inner_text()
    assert f"autotune export run-1 --trial {measured['number']}" in text
    keep(page, "trial")


def test_an_error_text_is_no_markup(address, open_page, keep, failed):
    """What a workload writes is shown as it is, on its trial's page, in the table, everywhere."""
    page = open_page(f"{address}/runs/1/trials/{failed['number']}")
    page.get_by_text("<img src=x onerror=alert(1)>").first.wait_for()
    keep(page, "trial-failed")
    page.goto(f"{address}/runs/1")
    page.locator("#failures").get_by_text("<img src=x").wait_for()
    page.locator("#columns").click()
    page.get_by_role("option", name="Error", exact=True).click()
    page.keyboard.press("Escape")
    page.locator(".ag-row").get_by_text("<img src=x").first.wait_for(state="attached")
    assert page.locator('main img, main a[href^="javascript"]').count() == 0


def test_a_question_is_answered(address, open_page, keep):
    """With rows, and as a file."""
    page = open_page(f"{address}/query?sql=SELECT%20count(*)%20AS%20n%20FROM%20runs")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("#result .ag-cell").get_by_text("2", exact=True).wait_for()
    keep(page, "query")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.path().read_text() == "n\n2\n"
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    assert json.loads(download.value.path().read_text())["rows"] == [[2]]


def test_every_saved_example_runs(address, open_page):
    """None of them may be refused."""
    page = open_page(f"{address}/query")
    page.locator("#example").click()
    names = page.get_by_role("option").all_inner_texts()
    assert len(names) >= 5
    page.keyboard.press("Escape")
    for name in names:
        page.locator("#example").click()
        page.get_by_role("option", name=name).click()
        page.wait_for_function("document.querySelector('#sql').value.length > 0")
        page.get_by_role("button", name="Run", exact=True).click()
        page.locator("#answer").get_by_text(re.compile(r"^\d+ rows")).wait_for()
        assert page.locator("#problem").inner_text() == ""


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DELETE FROM trials", "only reads"),
        ("SELEKT 1", "refused the query"),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
            "was stopped after 10 s",
        ),
    ],
)
def test_a_bad_question_is_explained(address, open_page, sql, words):
    """On the page; others are answered meanwhile, and afterwards."""
    page = open_page(f"{address}/query")
    page.locator("#sql").fill(sql)
    page.get_by_role("button", name="Run", exact=True).click()
    with urllib.request.urlopen(f"{address}/api/v1/runs", timeout=5) as answer:
        assert json.load(answer)["total"] == 2
    page.locator("#problem").get_by_text(words).wait_for()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/runs/77", "no run '77'"),
        ("/runs/1/trials/999", "has no trial 999"),
        ("/compare?trials=7", "'7' names no trial"),
        ("/nowhere", "there is no page /nowhere"),
    ],
)
def test_an_address_that_leads_nowhere_is_explained(address, open_page, path, words):
    """With what to do instead."""
    page = open_page(address + path)
    page.locator("#problem").get_by_text(words).wait_for()


def test_dark_and_small(address, open_page, keep):
    """The page follows the system's colours, fits a phone, and remembers the viewer's choice."""
    page = open_page(
        f"{address}/runs/1", color_scheme="dark", viewport={"width": 390, "height": 844}
    )
    page.locator(".ag-row a").first.wait_for()
    page.locator("#best .main-svg").first.wait_for()
    assert page.locator("html").get_attribute("data-mantine-color-scheme") == "dark"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "run-phone-dark")
    page.locator("header button").click()
    page.reload()
    page.locator('html[data-mantine-color-scheme="light"]').wait_for()


def test_times_are_in_the_viewers_zone(address, open_page, run):
    """UTC + 9 in Tokyo."""
    page = open_page(f"{address}/runs/1", timezone_id="Asia/Tokyo")
    began = run["run"]["created_at"]
    hour = (int(began[11:13]) + 9) % 24
    page.get_by_text(re.compile(rf"started \d+-\d+-\d+ {hour:02d}{began[13:19]}")).wait_for()


def test_all_is_reached_by_keyboard(address, open_page):
    """Tab leads through the menu to the first run."""
    page = open_page(address)
    page.locator("main tbody tr").first.wait_for()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText"))
    assert {"Runs", "Compare", "Query", "API", "second", "run-1"} <= set(reached)
    while page.evaluate("document.activeElement.innerText") != "run-1":
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="run-1").wait_for()


def test_optunas_own_dashboard_shows_the_study(address, open_page, keep):
    """Its page, its data, and no way to change any of it."""
    page = open_page(f"{address}/optuna/1")
    page.get_by_text("Hyperparameter Importance").wait_for()
    assert "/dashboard/studies/" in page.url
    page.wait_for_timeout(1000)
    assert page.get_by_text("Failed to load").count() == 0
    keep(page, "optuna")


def test_the_api_describes_itself(address, open_page, keep):
    """From files of this machine."""
    page = open_page(f"{address}/api/v1/docs")
    page.get_by_text("/api/v1/runs/{run}/trials", exact=True).first.wait_for()
    keep(page, "api-docs")


def test_a_run_deleted_while_looked_at_is_explained(real_store, tmp_path, open_page):
    """The page says so, and the server goes on."""
    copy = tmp_path / "autotune.db"
    with sqlite3.connect(real_store) as source, sqlite3.connect(copy) as target:
        source.backup(target)
        target.execute("UPDATE runs SET state = 'running'")
    with serving(tmp_path) as address:
        page = open_page(f"{address}runs/1")
        page.locator(".ag-row a").first.wait_for()
        with sqlite3.connect(copy) as connection:
            for table, column in (("windows", "run_id"), ("trials", "run_id"), ("runs", "id")):
                connection.execute(f"DELETE FROM {table} WHERE {column} = 1")
        page.locator("#problem").get_by_text("no run '1'").wait_for()
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_role("link", name="second").wait_for()
        page.close()


def test_no_store_is_explained_until_there_is_one(real_store, tmp_path, open_page):
    """The server starts without a store and needs no restart when a run makes one."""
    with serving(tmp_path) as address:
        page = open_page(address)
        page.locator("#problem").get_by_text("`autotune run MODEL` creates one").wait_for()
        copy = tmp_path / "autotune.db"
        with sqlite3.connect(real_store) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        page.get_by_role("link", name="Query").click()
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_role("link", name="second").wait_for()
        page.close()
