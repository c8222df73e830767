"""Every page, and all that it answers, over every database."""

import json

import pytest
from starlette.testclient import TestClient

from autotune.dashboard import charts
from autotune.dashboard.app import make_app
from autotune.dashboard.pages.run_answers import RunCallbacks
from autotune.dashboard.shell import page_at
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import NotFoundError
from autotune.report.reading import read_trial
from tests.dashboard.small_store import fill

GRID = {"startRow": 0, "endRow": 100, "sortModel": [], "filterModel": {}}
HERE = {"path": "/", "search": "", "zone": "Europe/Berlin"}


@pytest.fixture
def source(url):
    """A small store in each database."""
    fill(url)
    return Source(url)


def shown(component):
    """Return all that the browser gets, as text."""
    return json.dumps(component.to_plotly_json(), default=lambda inner: inner.to_plotly_json())


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/", {}, "first"),
        ("/", {"page": "2"}, "Newer"),
        ("/runs/1", {}, "3 fresh processes each"),
        ("/runs/1", {}, '"children": "1.00"'),
        ("/runs/1", {}, "GiB; baseline 2.00 GiB"),
        ("/runs/second", {}, "No trial has been measured yet."),
        ("/runs/1/trials/3", {}, "out of <memory>"),
        ("/compare", {"trials": "1.1,first.2", "runs": "1,2"}, "Trial 2 of run 1"),
        ("/query", {"sql": "SELECT 42"}, "SELECT 42"),
    ],
)
def test_a_page_opens(source, path, query, words):
    """Without a browser, on what the store has."""
    assert words in shown(page_at(source, Visit(path=path, query=query)))


def test_a_page_that_is_not_there_is_refused(source):
    """With where to go."""
    with pytest.raises(NotFoundError, match="there is no page /runs/1/x"):
        page_at(source, Visit(path="/runs/1/x"))


@pytest.mark.parametrize(
    ("part", "arguments", "words"),
    [
        ("sections", (1, HERE), "Throughput against memory"),
        ("best", (None, 1), "minutes"),
        ("trade_off", (None, "precision", 1), "precision=bf16"),
        ("effects", (None, 1), "100 % of the variance"),
        ("step_time", (None, 1), "waiting for data"),
        ("failures", (None, 1), "out of <memory>"),
        ("plan", (None, 1), "schema_version"),
        ("plan", (None, 2), "has no winner"),
        ("best", (None, 2), "No trial has been measured yet."),
        ("effects", (None, 2), "No knob has been tried"),
    ],
)
def test_a_part_of_a_run_is_filled(source, part, arguments, words):
    """Each by a callback of its own; also where there is nothing yet."""
    assert words in shown(getattr(RunCallbacks(source), part)(*arguments))


def test_charts_hold_what_was_measured(source):
    """Each throughput beside its time, its memory, or its window."""
    answers = RunCallbacks(source)
    best = answers.best(None, 1)
    assert [point["speed"] for point in best.data] == [100.0, 200.0, 200.0]
    minutes = [point["minutes"] for point in best.data]
    assert minutes == sorted(minutes)
    dots = {
        dot["trial"]: (series["name"], dot["memory"], dot["throughput"])
        for series in answers.trade_off(None, "precision", 1).children[0].data
        for dot in series["data"]
    }
    assert dots == {1: ("precision=fp32", 3.0, 100.0), 2: ("precision=bf16", 3.0, 200.0)}
    with source.store() as store:
        windows = read_trial(store, store.run("1"), 2)["windows"]
    assert charts.windows(windows).data == [
        {"seconds": 0.25, "speed": 1280.0},
        {"seconds": 0.51, "speed": 1107.7},
    ]
    (step,) = answers.step_time(None, 1).children[0].data
    assert step == {"plan": "baseline", "waiting for data": 4.0, "computing and the rest": 96.0}


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"sortModel": [{"colId": "throughput", "sort": "desc"}]}, [2, 1, 3]),
        ({"sortModel": [{"colId": "throughput", "sort": "asc"}]}, [1, 2, 3]),
        ({"sortModel": [{"colId": "number", "sort": "desc"}]}, [3, 2, 1]),
        ({"filterModel": {"precision": {"type": "equals", "filter": "bf16"}}}, [2, 3]),
        # The column shows GiB, the database has bytes; both measured trials needed 3 GiB.
        ({"filterModel": {"memory_bytes": {"type": "lessThanOrEqual", "filter": 2.9}}}, []),
        ({"filterModel": {"memory_bytes": {"type": "greaterThanOrEqual", "filter": 3}}}, [1, 2]),
        ({"filterModel": {"throughput": {"type": "blank"}}}, [3]),
        ({"startRow": 1, "endRow": 2}, [2]),
    ],
)
def test_the_tables_questions_are_answered(source, asked, numbers):
    """In the words of the grid, and its units."""
    answer = RunCallbacks(source).rows({**GRID, **asked}, 1, HERE)
    assert [row["id"] for row in answer["rowData"]] == [str(number) for number in numbers]
    assert answer["rowCount"] == (3 if "startRow" in asked else len(numbers))


def test_the_table_shows_texts(source):
    """Units of the headings, booleans as JSON has them, times of the viewer's zone."""
    first, _, last = RunCallbacks(source).rows(GRID, 1, HERE)["rowData"]
    assert (first["throughput"], first["memory_bytes"]) == ("100", "3.00")
    assert (first["pin_memory"], first["workers"]) == ("false", "0")
    assert (last["outcome"], last["throughput"]) == ("oom", "-")
    assert last["error"] == "out of <memory>"


def test_optuna_sees_the_study(source):
    """Candidates with their throughput; what failed is a failed trial there, too."""
    with TestClient(make_app(source.url), base_url="http://localhost") as client:
        page = client.get("/optuna/first", follow_redirects=False)
        study = page.headers["location"].rpartition("/")[2]
        trials = client.get(f"/api/studies/{study}").json()["trials"]
        assert [trial["state"] for trial in trials] == ["Complete", "Complete", "Fail"]
        assert trials[1]["values"] == [200.0]
        assert client.post("/api/studies", json={}).status_code == 405
        again = client.get("/optuna/1", follow_redirects=False).headers["location"]
        assert len(client.get("/api/studies").json()["study_summaries"]) == 1
        assert client.get(again).status_code == 200
