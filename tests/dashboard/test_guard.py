"""Who may look, and from where."""

import re

import pytest
from starlette.testclient import TestClient

from autotune.dashboard.app import make_app
from autotune.dashboard.serve import token_for

TOKEN = "correct-horse-battery"
RUNS = "/api/v1/runs"


@pytest.fixture
def here(tmp_path):
    """A client of a dashboard without a token; its store is missing, so that 503 is a yes."""
    with TestClient(make_app(str(tmp_path / "a.db")), base_url="http://localhost:8050") as client:
        yield client


@pytest.fixture
def there(tmp_path):
    """A client of a dashboard that asks for a token."""
    app = make_app(str(tmp_path / "a.db"), TOKEN)
    with TestClient(app, base_url="http://box:8050", follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("name", ["localhost:8050", "127.0.0.1:8050", "[::1]:8050", "localhost"])
def test_this_machine_may_look(here, name):
    """By any of its names for itself."""
    assert here.get(RUNS, headers={"Host": name}).status_code == 503


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "192.168.0.7:80"])
@pytest.mark.parametrize("path", ["/", RUNS, "/optuna/1", "/dashboard", "/_dash-layout"])
def test_another_name_for_this_machine_may_not(here, name, path):
    """A page elsewhere whose name was made to point here sends its own name."""
    answer = here.get(path, headers={"Host": name})
    assert answer.status_code == 403
    assert "--host" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_sites_page_may_not_ask(here, headers, method):
    """Neither what it could read nor what would only cost time."""
    answer = here.request(method, "/api/v1/query", headers=headers, json={"sql": "SELECT 1"})
    assert answer.status_code == 403


def test_a_link_from_another_site_may_lead_here(here):
    """Whoever follows it looks with their own eyes."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert here.get(RUNS, headers=headers).status_code == 503
    assert here.post("/api/v1/query", headers=headers, json={}).status_code == 403


def test_our_own_pages_may_ask(here):
    """They name this server as their origin."""
    headers = {"Origin": "http://localhost:8050", "Sec-Fetch-Site": "same-origin"}
    answer = here.post("/api/v1/query", headers=headers, json={"sql": "SELECT 1"})
    assert answer.status_code == 503


@pytest.mark.parametrize("path", ["/", RUNS, "/dashboard", "/assets/style.css", "/_dash-layout"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "autotune_8050=wrong"},
        {"Cookie": f"autotune_8051={TOKEN}"},
    ],
)
def test_without_the_token_there_is_nothing_to_see(there, path, headers):
    """Not even a file."""
    answer = there.get(path, headers=headers)
    assert answer.status_code == 401
    assert "?token=" in answer.json()["error"]["message"]


def test_the_token_is_kept_in_a_cookie(there):
    """It leaves the address at once, and scripts cannot read it."""
    answer = there.get("/runs/1", params={"token": TOKEN, "page": "2"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/1?page=2")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert there.get(RUNS).status_code == 503


def test_a_program_sends_the_token_with_each_request(there):
    """As a bearer token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert there.get(RUNS, headers=headers).status_code == 503
    assert there.get(RUNS).status_code == 401


def test_with_the_token_another_site_may_still_not_ask(there):
    """Its user's browser would send the cookie along."""
    there.get("/", params={"token": TOKEN})
    assert there.get(RUNS, headers={"Origin": "http://evil.example"}).status_code == 403


def test_pages_load_nothing_from_elsewhere(here):
    """The policy allows this server alone, and only scripts that we know."""
    policy = here.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    script = re.search(r"script-src ([^;]*)", policy).group(1).split()
    assert script[0] == "'self'"
    assert all(source.startswith("'sha256-") for source in script[1:])
    assert "frame-ancestors 'none'" in policy


def test_only_an_address_that_others_reach_needs_a_token():
    """A new one each time, unless the user has one."""
    assert token_for("127.0.0.1", None) is None
    assert token_for("127.0.0.1", TOKEN) == TOKEN
    assert token_for("0.0.0.0", TOKEN) == TOKEN
    one, other = token_for("0.0.0.0", None), token_for("::", None)
    assert len(one) >= 32
    assert one != other
