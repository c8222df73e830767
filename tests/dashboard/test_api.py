"""The JSON API: the CLI's shapes, one shape for errors, limits."""

import csv
import io
import json
import sqlite3

import pytest
from starlette.testclient import TestClient

from autotune.dashboard import source
from autotune.dashboard.app import make_app
from autotune.export.plan_file import load_plan_file
from tests.dashboard.small_store import BASELINE, BF16, fill


@pytest.fixture
def store_file(tmp_path):
    """A small store in a file."""
    file = tmp_path / "autotune.db"
    fill(str(file))
    return file


@pytest.fixture
def api(store_file):
    """A client of the API on this machine."""
    with TestClient(make_app(str(store_file)), base_url="http://localhost/api/v1") as client:
        yield client


@pytest.fixture
def printed(store_file, type_command):
    """What a command prints with `--json`."""

    def call(*words):
        status, out, _ = type_command("autotune", *words, "--storage", str(store_file), "--json")
        assert status == 0
        return json.loads(out)

    return call


def test_runs_are_those_of_the_command(api, printed):
    """Newest first, in pages."""
    page = api.get("/runs").json()
    assert page["items"] == printed("runs")
    assert (page["total"], page["limit"], page["offset"]) == (2, 100, 0)
    assert [run["name"] for run in api.get("/runs?limit=1&offset=1").json()["items"]] == ["first"]


def test_a_run_is_that_of_the_command(api, printed):
    """By id, by name, or `last`."""
    assert api.get("/runs/1").json() == printed("show", "first")
    assert api.get("/runs/last").json()["run"]["name"] == "second"


def test_trials_are_those_of_the_command(api, printed):
    """With the same filter and order."""
    page = api.get("/runs/first/trials", params={"where": "throughput > 0", "sort": "throughput"})
    command = printed("trials", "first", "--where", "throughput > 0", "--sort", "throughput")
    assert page.json()["items"] == command
    assert [trial["number"] for trial in command] == [2, 1]
    assert page.json()["total"] == 2


def test_trials_come_in_pages(api):
    """`total` counts all pages."""
    page = api.get("/runs/1/trials?limit=1&offset=2").json()
    assert page["total"] == 3
    assert [trial["number"] for trial in page["items"]] == [3]


def test_a_trial_is_that_of_the_command(api, printed):
    """With its windows, and the commands that measure it again."""
    trial = api.get("/runs/1/trials/2").json()
    assert trial == printed("show", "1", "2")
    assert len(trial["windows"]) == 2


@pytest.mark.parametrize("format_name", ["yaml", "json", "toml"])
def test_a_plan_is_a_file_that_can_be_used(api, tmp_path, format_name):
    """The winner's, or a trial's."""
    file = tmp_path / f"plan.{format_name}"
    file.write_bytes(api.get(f"/runs/1/plan?format={format_name}").content)
    assert load_plan_file(file).plan == BF16
    file.write_bytes(api.get(f"/runs/1/plan?format={format_name}&trial=1").content)
    assert load_plan_file(file).plan == BASELINE


def test_a_question_is_answered(api):
    """As JSON, and as CSV."""
    sql = "SELECT number, outcome FROM trials ORDER BY 1"
    answer = api.post("/query", json={"sql": sql, "max_rows": 2}).json()
    rows = [[1, "ok"], [2, "ok"]]
    assert answer == {"columns": ["number", "outcome"], "rows": rows, "truncated": True}
    text = api.post("/query.csv", json={"sql": sql}).text
    assert list(csv.reader(io.StringIO(text)))[-1] == ["3", "oom"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/runs/77", None, 404, "no run '77'"),
        ("GET", "/runs/1/trials/9", None, 404, "has no trial 9"),
        ("GET", "/runs/1/trials/nine", None, 400, "number='nine'"),
        ("GET", "/runs/1/trials?where=presision%3D1", None, 400, "presision"),
        ("GET", "/runs/1/trials?sort=speed", None, 400, "no column 'speed'"),
        ("GET", "/runs?limit=0", None, 400, "limit='0'"),
        ("GET", "/runs?limit=100000", None, 400, "limit='100000'"),
        ("GET", "/runs/1/plan?format=xml", None, 400, "format='xml'"),
        ("GET", "/runs/second/plan", None, 400, "has no winner"),
        ("POST", "/query", {"sql": "DELETE FROM runs"}, 400, "only reads"),
        ("POST", "/query", {"sql": "SELECT 1; SELECT 2"}, 400, "one statement"),
        ("POST", "/query", {"sql": "SELECT 1", "max_rows": 10**9}, 400, "max_rows"),
        ("POST", "/query", {}, 400, "sql"),
        ("GET", "/query", None, 404, "no GET /api/v1/query"),
        ("DELETE", "/runs/1", None, 404, "/api/v1/docs lists"),
    ],
)
def test_errors_have_one_shape(api, method, path, body, status, words):
    """`{"error": {"status", "message"}}`, with what to do."""
    answer = api.request(method, path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"status", "message"}
    assert error["status"] == status
    assert words in error["message"]


def test_a_query_that_runs_for_ever_is_stopped(api):
    """After the time it was given."""
    forever = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )
    answer = api.post("/query", json={"sql": forever, "timeout_s": 0.2})
    assert answer.status_code == 400
    assert "stopped after 0.2 s" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content", [None, b"not a database at all, but longer than a header" * 9])
def test_a_store_that_cannot_be_read_is_explained(tmp_path, content):
    """503: it may be there later. The server starts all the same."""
    file = tmp_path / "a.db"
    if content is not None:
        file.write_bytes(content)
    with TestClient(make_app(str(file)), base_url="http://localhost") as client:
        answer = client.get("/api/v1/runs")
    assert answer.status_code == 503
    assert str(file) in answer.json()["error"]["message"]


def test_a_half_written_store_is_explained(store_file):
    """A copy that was cut off in the middle."""
    whole = store_file.read_bytes()
    store_file.write_bytes(whole[: len(whole) // 2])
    with TestClient(make_app(str(store_file)), base_url="http://localhost") as client:
        answer = client.get("/api/v1/runs/1/trials")
    assert answer.status_code == 503
    assert "damaged" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("revision", "words"), [("0001", "written by an older autotune"), ("9999", "a newer autotune")]
)
def test_a_store_of_another_version_is_explained(store_file, revision, words):
    """With what brings them together; here the older one is not what it says it is."""
    with sqlite3.connect(store_file) as connection:
        connection.execute("UPDATE autotune_alembic_version SET version_num = ?", [revision])
    with TestClient(make_app(str(store_file)), base_url="http://localhost") as client:
        answer = client.get("/api/v1/runs")
    assert answer.status_code == 503
    assert words in answer.json()["error"]["message"]


def test_a_locked_store_is_explained(store_file, monkeypatch):
    """Soon, and it is there again when the lock is gone."""
    monkeypatch.setattr(source, "BUSY_TIMEOUT_S", 0.2)
    holder = sqlite3.connect(store_file, isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    with TestClient(make_app(str(store_file)), base_url="http://localhost") as client:
        answer = client.get("/api/v1/runs")
        assert answer.status_code == 503
        assert "is locked by another process" in answer.json()["error"]["message"]
        holder.close()
        assert client.get("/api/v1/runs").status_code == 200


def test_the_api_describes_all_of_itself(api):
    """Every route has words of its own in the OpenAPI document."""
    paths = api.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        f"/api/v1{path}"
        for path in (
            "/runs",
            "/runs/{run}",
            "/runs/{run}/trials",
            "/runs/{run}/trials/{number}",
            "/runs/{run}/trials/{number}/log",
            "/runs/{run}/trials/{number}/trace",
            "/runs/{run}/plan",
            "/query",
            "/query.csv",
        )
    }
    assert all(route["description"] for path in paths.values() for route in path.values())
