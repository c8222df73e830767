"""Finding one's way, keeping what one chose, writing notes, and the files of a trial."""

import json
import re
import shutil
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import pytest

from autotune.storage.notes import Note
from autotune.storage.sql import open_store
from tests.dashboard.conftest import H200, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store of its own, and the log of a trial beside it."""
    folder = tmp_path_factory.mktemp("sharing")
    shutil.copy(H200, folder / "autotune.db")
    with closing(open_store(str(folder / "autotune.db"))) as store:
        log = store.trial(store.run("resnet50"), 4).log_path
    (folder / log).parent.mkdir(parents=True)
    (folder / log).write_text("first line\n" * 5000 + "last line\n")
    return folder


@pytest.fixture(scope="module")
def site(folder):
    """Where the dashboard over it is."""
    with serving(folder) as address:
        yield address.rstrip("/")


def query_of(page):
    """Return the choices in the address of a page."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_the_tab_says_what_it_shows(site, open_page):
    """Also when the page changes without being loaded anew."""
    page = open_page(site)
    page.locator("main tbody tr").first.wait_for()
    assert page.title() == "Runs · autotune"
    page.get_by_role("link", name="resnet50").click()
    page.wait_for_function("() => document.title == 'resnet50 · autotune'")


def test_back_leads_to_where_one_was(site, open_page):
    """A page is as far down as when one left it."""
    page = open_page(f"{site}/runs/resnet50")
    page.locator(".ag-row a").first.wait_for()
    link = page.locator("main").get_by_role("link", name="trial 2")
    link.scroll_into_view_if_needed()
    page.evaluate("window.scrollTo(0, 700)")
    page.wait_for_function("() => sessionStorage.getItem('scroll:/runs/resnet50') == '700'")
    page.evaluate("document.querySelector('main a[href$=\"/trials/2\"]').click()")
    page.get_by_role("heading", name="Trial 2").wait_for()
    page.wait_for_function("() => window.scrollY == 0")
    page.go_back()
    page.get_by_role("heading", name="resnet50", exact=True).wait_for()
    page.wait_for_function("() => window.scrollY == 700")


def test_choices_are_in_the_address(site, open_page):
    """Whoever opens it sees what was chosen."""
    page = open_page(f"{site}/runs/resnet50")
    page.locator(".ag-row a").first.wait_for()
    page.locator("#colour").click()
    page.get_by_role("option", name="precision").click()
    page.wait_for_function("() => location.search.includes('colour=precision')")
    page.locator("#columns").click()
    page.get_by_role("option", name="Step (ms)", exact=True).click()
    page.keyboard.press("Escape")
    page.locator("#plan-other").click()
    page.get_by_role("option", name="trial 2", exact=True).click()
    page.wait_for_function("() => location.search.includes('with=')")
    chosen = query_of(page)
    assert chosen["colour"] == "precision"
    assert chosen["columns"].endswith(",step_ms")
    assert chosen["with"] == "trial:2"
    other = open_page(page.url)
    other.locator("#trade-off").get_by_text("precision=bf16").first.wait_for()
    other.get_by_role("columnheader", name="Step (ms)").wait_for(state="attached")
    other.locator("#plan-values").get_by_role("columnheader", name="Trial 2").wait_for()


def test_a_statement_in_the_address_is_answered(site, open_page):
    """Ctrl+Enter runs what one typed, and the address has it."""
    page = open_page(f"{site}/query?sql=SELECT%2041%20AS%20n")
    page.locator("#result .ag-cell").get_by_text("41", exact=True).wait_for()
    page.locator("#sql").fill("SELECT 42 AS n")
    page.locator("#sql").press("Control+Enter")
    page.locator("#result .ag-cell").get_by_text("42", exact=True).wait_for()
    assert query_of(page)["sql"] == "SELECT 42 AS n"


def test_ticked_runs_are_compared(site, open_page):
    """Two ticks and a link."""
    page = open_page(site)
    page.get_by_role("checkbox", name="Compare resnet50").check()
    page.get_by_role("checkbox", name="Compare diffusion").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("link", name="diffusion").wait_for()
    assert len(query_of(page)["runs"].split(",")) == 2


def test_trials_lead_to_their_neighbours(site, open_page):
    """The first has none before it, the last none after it."""
    page = open_page(f"{site}/runs/resnet50/trials/1")
    page.get_by_role("link", name="Next trial").click()
    page.get_by_role("heading", name="Trial 2", exact=True).wait_for()
    page.get_by_role("link", name="Previous trial").click()
    page.get_by_role("heading", name="Trial 1", exact=True).wait_for()
    assert page.get_by_role("link", name="Previous trial").count() == 0
    page.goto(f"{site}/runs/resnet50/trials/8")
    page.get_by_role("link", name="Previous trial").wait_for()
    assert page.get_by_role("link", name="Next trial").count() == 0


@pytest.mark.parametrize(
    ("path", "run", "number"), [("/runs/recommender", 1, 0), ("/runs/recommender/trials/3", 1, 3)]
)
def test_a_note_is_kept(site, folder, open_page, path, run, number):
    """With tags; it is there for the next one who looks, and is no markup."""
    page = open_page(site + path)
    page.get_by_label("Note", exact=True).fill("<b>quiet</b> machine")
    page.locator("#note-tags").fill("good")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.").wait_for()
    with closing(open_store(str(folder / "autotune.db"), read_only=True)) as store:
        assert store.notes.of(run, number) == Note(text="<b>quiet</b> machine", tags=("good",))
    other = open_page(site + path)
    other.locator(".tag").get_by_text("good").wait_for()
    assert other.get_by_label("Note", exact=True).input_value() == "<b>quiet</b> machine"


def test_the_whole_log_is_read_and_downloaded(site, open_page):
    """The page has its end, the file all of it."""
    page = open_page(f"{site}/runs/resnet50/trials/4")
    page.get_by_role("heading", name="Measure it again").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download it").click()
    assert download.value.path().read_text().count("first line\n") == 5000
    page.get_by_role("link", name="Look at the whole log").click()
    page.get_by_text("last line").wait_for()


def test_a_log_that_is_not_here_is_no_link(site, open_page):
    """And its address says where to look."""
    page = open_page(f"{site}/runs/resnet50/trials/2")
    page.get_by_role("heading", name="Measure it again").wait_for()
    assert page.get_by_role("link", name="Look at the whole log").count() == 0
    answer = page.request.get(f"{site}/api/v1/runs/resnet50/trials/2/log")
    assert answer.status == 404
    assert "not on this machine" in json.loads(answer.text())["error"]["message"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../outside.log", "autotune.db"])
def test_a_store_names_no_file_outside(tmp_path, open_page, path):
    """It may come from elsewhere, and its paths from anybody."""
    from starlette.testclient import TestClient

    from autotune.dashboard.app import make_app
    from autotune.storage.testing import make_run
    from autotune.trials.result import Purpose

    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "outside.log").write_text("secret")
    with closing(open_store(str(inner / "autotune.db"))) as store:
        run = store.create_run(make_run())
        store.start_trial(run.id, 1, run.new.baseline, Purpose.BASELINE, "", path)
    with TestClient(make_app(str(inner / "autotune.db")), base_url="http://localhost") as client:
        assert client.get("/api/v1/runs/1/trials/1/log").status_code == 404


def test_a_trial_is_opened_without_a_pointer(site, open_page):
    """What dots are for those who point, a list is for those who type."""
    page = open_page(f"{site}/runs/resnet50")
    page.locator("#best .main-svg").first.wait_for()
    page.locator("#go").focus()
    page.keyboard.type("trial 3")
    page.get_by_role("option", name=re.compile("^trial 3:")).wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Trial 3", exact=True).wait_for()


def test_a_study_of_optuna_keeps_its_address(folder, open_page):
    """A server that has just started shows it, too."""
    with serving(folder) as address:
        page = open_page(f"{address}dashboard/studies/2")
        page.get_by_text("Hyperparameter Importance").wait_for()
        page.get_by_text("resnet50").first.wait_for()
        page.close()
