"""What a browser gets for an address, before it has run anything, and what it may keep."""

import re

import pytest
from starlette.testclient import TestClient

from autotune.dashboard.app import make_app
from tests.dashboard.small_store import fill


@pytest.fixture
def fresh(tmp_path):
    """A client of a server that nobody has asked for anything yet."""
    fill(str(tmp_path / "a.db"))
    with TestClient(make_app(str(tmp_path / "a.db")), base_url="http://localhost") as client:
        yield client


def _addresses(document):
    return re.findall(r'(?:href|src|content)="(/[^"]+)"', document)


@pytest.mark.parametrize("path", ["/", "/runs/1", "/runs/1/trials/2", "/query", "/nowhere"])
def test_any_address_opened_first_has_the_style_sheet(fresh, path):
    """And the file is there."""
    document = fresh.get(path).text
    (style,) = re.findall(r'<link rel="stylesheet" href="(/assets/[^"]+)"', document)
    assert "grid-template-columns" in fresh.get(style).text


@pytest.mark.parametrize(
    ("path", "heading", "tab"),
    [
        ("/", "Runs", "Runs · autotune"),
        ("/runs/1", "first", "first · autotune"),
        ("/runs/last", "second", "second · autotune"),
        ("/runs/1/trials/2", "Trial 2 of first", "Trial 2 of first · autotune"),
        ("/runs/77", "autotune", "autotune"),
        ("/runs/%3Cscript%3E", "autotune", "autotune"),
    ],
)
def test_the_document_names_its_page(fresh, path, heading, tab):
    """The heading is there before any script is."""
    document = fresh.get(path).text
    assert f"<h1>{heading}</h1>" in document
    assert f"<title>{tab}</title>" in document


def test_a_runs_name_is_no_markup(fresh, tmp_path):
    """Names are what users type."""
    from contextlib import closing

    from autotune.storage.sql import open_store
    from autotune.storage.testing import make_run

    with closing(open_store(str(tmp_path / "a.db"))) as store:
        store.create_run(make_run(name="<script>alert(1)</script>"))
    assert "<script>alert(1)" not in fresh.get("/runs/last").text


def test_all_that_a_document_names_is_kept_by_the_browser(fresh):
    """Each address changes with its file, so that it need not be asked for again."""
    addresses = _addresses(fresh.get("/runs/1").text)
    assert len(addresses) > 8
    for address in addresses:
        answer = fresh.get(address)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"


def test_an_asset_without_its_version_is_not_kept(fresh):
    """Its contents may change."""
    assert "cache-control" not in fresh.get("/assets/style.css").headers


def test_what_is_loaded_later_is_kept_for_a_while(fresh):
    """Its address does not change with a package's version."""
    fresh.get("/runs/1")
    answer = fresh.get("/_dash-component-suites/dash_ag_grid/async-community.js")
    assert answer.headers["cache-control"] == "private, max-age=3600"


def test_what_travels_is_compressed(fresh):
    """Documents, scripts and the API alike."""
    document = fresh.get("/runs/1")
    largest = next(a for a in _addresses(document.text) if "mantine" in a)
    for answer in (document, fresh.get(largest), fresh.get("/api/v1/runs/1")):
        assert answer.headers["content-encoding"] == "gzip"


def test_the_tables_script_is_not_part_of_the_document(fresh):
    """It is as large as all others together; pages that have a table load it later."""
    assert re.search(r"<script[^>]*dash_ag_grid", fresh.get("/runs/1").text) is None
