"""What comes in over HTTP: who may do what, and what is refused."""

import io
import json
import tarfile
from contextlib import closing

import pytest

from autotune.dashboard.source import Source
from autotune.service.processes import JobProcess
from autotune.service.stream import JobStream, Place
from autotune.storage.access import Role
from autotune.storage.job_records import JobState
from autotune.storage.sql import open_store
from tests.service.conftest import TOKENS, packed

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def message(answer):
    return answer.json()["error"]["message"]


def test_a_job_is_queued(caller):
    """It belongs to the token's name, and says what was asked."""
    answer = caller.submit(name="mine", priority=3, budget="2h", options={"trials": 5})
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["id"], job["state"], job["owner"], job["name"]) == (1, "queued", "ann", "mine")
    assert (job["priority"], job["budget_s"], job["num_devices"]) == (3, 7200.0, 1)
    listed = caller.call("lou", "GET", "/jobs").json()
    assert (listed["total"], listed["items"][0]["id"]) == (1, 1)
    assert caller.call("lou", "GET", "/jobs?state=running").json()["total"] == 0
    assert caller.call("lou", "GET", "/jobs/last").json()["events"][0]["text"] == "queued by ann"


def test_a_job_that_is_sent_again_is_queued_once(caller, tmp_path):
    """Its sender may not have got the answer; another sender's key is another one."""
    first, again = caller.submit(key="k").json(), caller.submit(key="k").json()
    assert first["id"] == again["id"]
    assert caller.submit("sam", key="k").json()["id"] != first["id"]
    assert len(list((tmp_path / "service" / "workloads").iterdir())) == 2


def test_a_folder_of_the_servers_is_taken_too(caller, tmp_path):
    """Nothing is sent then, but the path is looked at."""
    (tmp_path / "model.py").write_text("")
    job = {"model": "model.py", "folder": str(tmp_path)}
    assert caller.call("ann", "POST", "/jobs", json=job).status_code == 201
    answer = caller.call("ann", "POST", "/jobs", json={**job, "folder": "/no/such"})
    assert (answer.status_code, "sees no folder" in message(answer)) == (400, True)
    answer = caller.call("ann", "POST", "/jobs", json={**job, "model": "other.py"})
    assert "there is no other.py" in message(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/jobs"),
        ("POST", "/jobs"),
        ("GET", "/jobs/1"),
        ("POST", "/jobs/1/cancel"),
        ("GET", "/jobs/1/stream"),
        ("GET", "/jobs/1/log"),
        ("GET", "/jobs/1/plan"),
        ("GET", "/jobs/1/report"),
        ("GET", "/audit"),
        ("GET", "/runs"),
        ("POST", "/query"),
    ],
)
@pytest.mark.parametrize("token", [None, "wrong", "token-of-revoked"])
def test_strangers_learn_nothing(caller, url, method, path, token):
    """Without a token, with a wrong one, or with one that was revoked."""
    with closing(open_store(url)) as store:
        store.tokens.add("revoked", "d", Role.ADMINISTER)
        store.tokens.revoke("revoked")
    headers = {"Authorization": f"Bearer {token}"} if token else {"Authorization": ""}
    answer = caller.call("ann", method, path, headers=headers)
    assert answer.status_code == 401
    assert "autotune token create" in message(answer)


def test_a_revoked_token_is_refused_soon(caller, url, monkeypatch):
    """As soon as it is looked up again."""
    monkeypatch.setattr("autotune.service.visitors.KEPT_S", 0.0)
    assert caller.call("ann", "GET", "/jobs").status_code == 200
    with closing(open_store(url)) as store:
        store.tokens.revoke("ann")
    assert caller.call("ann", "GET", "/jobs").status_code == 401


def test_roles_decide(caller):
    """Who looks does not submit; one's own jobs can be cancelled, others' by administrators."""
    answer = caller.submit("lou")
    assert answer.status_code == 403
    assert "'lou' may look; this needs one that may submit" in message(answer)
    caller.submit("ann")
    for who, status in (("lou", 403), ("sam", 403)):
        answer = caller.call(who, "POST", "/jobs/1/cancel")
        assert answer.status_code == status
        assert "belongs to 'ann'" in message(answer)
    assert caller.call("ann", "POST", "/jobs/1/cancel").json()["state"] == "cancelled"
    caller.submit("ann")
    assert caller.call("eve", "POST", "/jobs/2/cancel").json()["cancelled_by"] == "eve"
    assert caller.call("ann", "GET", "/audit").status_code == 403
    audit = caller.call("eve", "GET", "/audit").json()["items"]
    assert [(one["who"], one["action"], one["about"]) for one in audit] == [
        ("eve", "cancel", "job-2"),
        ("ann", "submit", "job-2"),
        ("ann", "cancel", "job-1"),
        ("ann", "submit", "job-1"),
    ]


def test_limits_of_a_token_hold(caller, url):
    """In devices and in hours, with what is allowed."""
    with closing(open_store(url)) as store:
        from autotune.service.tokens import digest

        limits = {"max_devices": 1, "max_hours": 0.5}
        store.tokens.add("kim", digest("token-of-kim"), Role.SUBMIT, **limits)
    answer = caller.submit("kim", devices=2)
    assert (answer.status_code, "allows 1" in message(answer)) == (403, True)
    answer = caller.submit("kim", budget="31m")
    assert (answer.status_code, "0.5 h" in message(answer)) == (403, True)
    assert caller.submit("kim", budget="30m").status_code == 201
    answer = caller.submit("ann", devices=3)
    assert (answer.status_code, "the server has 2" in message(answer)) == (400, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_pages_of_other_sites_cannot_submit(caller, headers):
    """A browser would send its user's cookie along."""
    caller.call("ann", "GET", "/jobs", params={"token": "token-of-ann"})
    answer = caller.call("ann", "POST", "/jobs", json={"model": "m.py"}, headers=headers)
    assert answer.status_code == 403
    assert caller.call("ann", "GET", "/jobs").json()["total"] == 0


@pytest.mark.parametrize("declared", [True, False])
def test_an_upload_that_is_too_large_is_refused_in_time(caller, declared):
    """By what it says of itself, or as soon as the limit is passed; the rest is not read."""
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    if declared:
        headers["Content-Length"] = str(10 * 2**30)
        answer = caller.call("ann", "POST", "/jobs", headers=headers, content=b"")
    else:
        start = b'--x\r\nContent-Disposition: form-data; name="archive"; filename="a"\r\n\r\n'
        body = (part for parts in ([start], [bytes(2**20)] * 110) for part in parts)
        answer = caller.call("ann", "POST", "/jobs", headers=headers, content=body)
    assert answer.status_code == 413, answer.text
    assert "larger than 100 MiB" in message(answer)


def test_harmful_archives_are_refused(caller, tmp_path):
    """With what is wrong; nothing of them stays."""
    for name in ("../../model.py", "/tmp/model.py"):
        answer = caller.submit(archive=packed(**{name: "x"}))
        assert answer.status_code == 400
        assert "leads out of its folder" in message(answer)
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 2**27
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    assert "made to fill disks" in message(caller.submit(archive=bomb.getvalue()))
    assert "no model.py" in message(caller.submit(archive=packed(**{"other.py": ""})))
    assert list((tmp_path / "service" / "workloads").iterdir()) == []
    assert caller.call("ann", "GET", "/jobs").json()["total"] == 0


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "the field `job` is missing"),
        ({"job": "{"}, "is no JSON"),
        ({"job": "[" * 50_000}, "is no JSON"),
        ({"job": '{"model": "m.py"}'}, "one of both"),
        ({"job": '{"model": "m.py", "modle": 1}'}, "did you mean 'model'"),
        ({"job": '{"model": "m.py", "budget": "1s"}'}, "too short"),
    ],
)
def test_what_is_no_job_is_explained(caller, form, said):
    """In the words of a command."""
    files = {"other": b""}
    answer = caller.call("ann", "POST", "/jobs", data=form, files=files)
    assert answer.status_code == 400, answer.text
    assert said in message(answer)


def test_before_there_is_a_run_there_is_no_plan(caller):
    """The message says what the job does."""
    caller.submit()
    for what in ("plan", "report", "log"):
        answer = caller.call("ann", "GET", f"/jobs/1/{what}")
        assert answer.status_code == 404
    assert "queued and has no run yet" in message(caller.call("ann", "GET", "/jobs/1/plan"))
    assert caller.call("ann", "GET", "/jobs/9").status_code == 404


def finished_job(caller, url, tmp_path, output):
    caller.submit()
    file = JobProcess(tmp_path / "service" / "jobs" / "1").output
    file.parent.mkdir(parents=True)
    file.write_text(output)
    with closing(open_store(url)) as store:
        store.jobs.claim(1, ["cpu0"], "box:1:1.0")
        store.jobs.finish(1, JobState.DONE, exit_code=0, message="well done")


def sent_events(text):
    """Return (id, event, data) of each server-sent event."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("id:")]
    rows = [dict(line.split(": ", 1) for line in block) for block in blocks]
    return [(row["id"], row["event"], json.loads(row["data"])) for row in rows]


def test_a_job_is_streamed_from_any_point_on(caller, url, tmp_path):
    """What was received before the connection was lost is not sent again."""
    finished_job(caller, url, tmp_path, "one\ntwo\n\nthr\N{LATIN SMALL LETTER E WITH ACUTE}e")
    events = sent_events(caller.call("lou", "GET", "/jobs/1/stream").text)
    kinds = [kind for _, kind, _ in events]
    assert kinds == [*["event"] * 3, *["output"] * 4, "end"]
    assert [data for _, kind, data in events if kind == "output"] == ["one", "two", "", "thrée"]
    assert events[-1][2]["message"] == "well done"
    for position, (place, _, _) in enumerate(events):
        headers = {"Last-Event-ID": place}
        again = sent_events(caller.call("lou", "GET", "/jobs/1/stream", headers=headers).text)
        assert again == (events[position + 1 :] or events[-1:])


def test_a_line_is_streamed_when_it_is_whole(caller, url, tmp_path):
    """While the job runs, more may come to the last one."""
    caller.submit()
    output = tmp_path / "output.log"
    stream = JobStream(Source(url), 1, output)
    output.write_text("one\ntw")
    _, found, place = stream._news(Place(event=1))
    assert [data for _, _, data in sent_events("".join(found))] == ["one"]
    output.write_text("one\ntwo\n")
    _, found, _ = stream._news(place)
    assert [data for _, _, data in sent_events("".join(found))] == ["two"]


def test_the_log_can_be_downloaded(caller, url, tmp_path):
    """As the job printed it."""
    finished_job(caller, url, tmp_path, "one\ntwo\n")
    answer = caller.call("lou", "GET", "/jobs/1/log?download=true")
    assert answer.text == "one\ntwo\n"
    assert "attachment" in answer.headers["content-disposition"]


def test_a_viewers_cookie_is_enough_to_look(caller):
    """The token leaves the address at once."""
    answer = caller.call("-", "GET", "/jobs", params={"token": "token-of-lou"})
    assert answer.status_code == 303
    assert "httponly" in answer.headers["set-cookie"].lower()
    answer = caller._client.get("/api/v1/jobs")
    assert answer.status_code == 200


def test_every_role_may_look(caller):
    """At jobs and at runs."""
    for who in TOKENS:
        assert caller.call(who, "GET", "/jobs").status_code == 200
        assert caller.call(who, "GET", "/runs").status_code == 200
