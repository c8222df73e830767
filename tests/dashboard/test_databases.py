"""Every page, and all that it answers, over every database."""

import json
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from autotune.dashboard import charts
from autotune.dashboard.app import make_app
from autotune.dashboard.pages.run_answers import RunCallbacks
from autotune.dashboard.pages.run_charts import RunCharts
from autotune.dashboard.shell import page_at
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import NotFoundError
from autotune.report.reading import read_trial
from autotune.storage.records import RunState
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.dashboard.small_store import BASELINE, BF16, fill, measured, winner_of

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
        ("/runs/1", {}, "CONFIRMED"),
        ("/runs/1", {}, "autotune export first -o plan.yaml"),
        ("/runs/1", {}, "GiB; baseline 2.00 GiB"),
        ("/runs/second", {}, "no trial yet"),
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
        ("failures", (None, 1), "out of <memory>"),
        ("plan", (None, 1, HERE), "schema_version"),
        ("plan", (None, 2, HERE), "has no winner"),
    ],
)
def test_a_part_of_a_run_is_filled(source, part, arguments, words):
    """Each by a callback of its own; also where there is nothing yet."""
    assert words in shown(getattr(RunCallbacks(source), part)(*arguments))


@pytest.mark.parametrize(
    ("part", "arguments", "words"),
    [
        ("progress", (None, None, 1), "minutes since"),
        ("trade_off", (None, "precision", 1), "precision=bf16"),
        ("knob_lines", (None, 1), "trial 2"),
        ("effects", (None, 1), "2 measured trials cannot tell"),
        ("step_time", (None, 1), "waiting for data"),
        ("progress", (None, None, 2), "No trial has ended yet."),
        ("trade_off", (None, None, 2), "No trial with a known peak memory yet."),
        ("knob_lines", (None, 2), "No two measured trials differ yet."),
        ("effects", (None, 2), "No knob has been tried"),
        ("step_time", (None, 2), "Not known yet."),
    ],
)
def test_a_chart_is_drawn(source, part, arguments, words):
    """Each by a callback of its own; also where there is nothing yet."""
    assert words in shown(getattr(RunCharts(source), part)(*arguments))


def drawn(component):
    """Return the traces of the first chart in a component, by name."""
    found = json.loads(shown(component))

    def figures(value):
        if isinstance(value, dict):
            if "figure" in value:
                yield value["figure"]
            for inner in value.values():
                yield from figures(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from figures(inner)

    return {trace.get("name"): trace for trace in next(figures(found))["data"]}


def test_charts_hold_what_was_measured(source):
    """Each throughput beside its time, its memory, or its window."""
    answers = RunCharts(source)
    progress = drawn(answers.progress(None, None, 1))
    assert progress["highest so far"]["y"] == [100.0, 200.0, 200.0]
    assert progress["highest so far"]["x"] == sorted(progress["highest so far"]["x"])
    assert (progress["baseline"]["customdata"], progress["baseline"]["y"]) == ([1], [100.0])
    assert (progress["winner"]["customdata"], progress["winner"]["y"]) == ([2], [200.0])
    assert (progress["out of memory"]["customdata"], progress["out of memory"]["y"]) == ([3], [0])
    by_value = drawn(answers.trade_off(None, "precision", 1))
    assert by_value["precision=fp32"]["x"] == [3.0]
    assert by_value["precision=bf16"]["y"] == [200.0]
    with source.store() as store:
        windows = read_trial(store, store.run("1"), 2)["windows"]
    (measured,) = drawn(charts.windows(windows)).values()
    assert measured["x"] == [0.25, 0.51]
    assert measured["y"] == [pytest.approx(1280.0), pytest.approx(1107.7, rel=1e-3)]
    parts = drawn(answers.step_time(None, 1))
    assert {name: trace["x"] for name, trace in parts.items()} == {
        "waiting for data": [4.0],
        "computing and the rest": [96.0],
    }


def test_a_plan_that_may_not_win_is_hollow(tmp_path):
    """It was faster, but ran out of memory again: no highest so far; and no winner is drawn."""
    url = str(tmp_path / "autotune.db")
    store = open_store(url)
    run = store.create_run(make_run())
    again = TrialResult(outcome=Outcome.OOM, error="out of memory")
    for number, (plan, purpose, result) in enumerate(
        (
            (BASELINE, Purpose.BASELINE, measured(100.0)),
            (BF16, Purpose.PRESET, measured(200.0)),
            (BF16, Purpose.CONFIRM, again),
        ),
        1,
    ):
        store.start_trial(run.id, number, plan, purpose, "because", "")
        store.finish_trial(run.id, number, result, used_s=1.0)
    kept = replace(winner_of(BASELINE, 1.0), kept_baseline=True, speedup=None)
    store.finish_run(run.id, RunState.DONE, stop_reason="done", used_s=9.0, winner=kept)
    store.close()
    progress = drawn(RunCharts(Source(url)).progress(None, None, 1))
    assert (progress["baseline"]["customdata"], "winner" in progress) == ([1], False)
    assert progress["highest so far"]["y"] == [100.0, 100.0]
    assert progress["may not win"]["customdata"] == [2]
    assert progress["may not win"]["marker"]["symbol"] == "circle-open"
    page = shown(page_at(Source(url), Visit(path="/runs/1")))
    assert "REJECTED (memory)" in page
    assert "Faster, but not allowed to win" in page


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
