"""A server and its client, as they are typed, and killed."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import autotune
from autotune.errors import NotAllowedError, ServerError, UsageError
from autotune.service.client import Client
from autotune.service.tokens import read_token
from autotune.storage.sql import open_store
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 90


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def serving(folder, *words, program="autotune"):
    """Run the command in `folder`; give the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", program, "serve", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process, process.stdout.readline().rpartition(" at ")[2].strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def autotune_(folder, *words, **environment):
    """Type a command in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def token(tmp_path):
    """A file with a token of the store in the folder `server`."""
    (tmp_path / "server").mkdir()
    done = autotune_(tmp_path / "server", "token", "create", "ann")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "token"
    file.write_text(done.stdout)
    file.chmod(0o600)
    return file


@pytest.fixture
def client_of(token):
    """Make a client for an address."""
    return lambda address, **more: Client(address, read_token(token), **more)


def wait_until(is_reached):
    until = time.monotonic() + LIMIT_S
    while not is_reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_real_job_from_the_command_to_the_plan(tmp_path, token):
    """A model.py is sent, tuned on the server, watched, and its plan fetched."""
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "model.py").write_text(TINY)
    with serving(tmp_path / "server", "--port", "0") as (_, address):
        settings = {"AUTOTUNE_SERVER": address, "AUTOTUNE_TOKEN_FILE": str(token)}
        words = ("model.py", "--budget", "25s", "--knobs", "optimizer_impl,threads", "--watch")
        done = autotune_(tmp_path / "client", "submit", *words, "--name", "tiny", **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "job 1 is queued" in done.stdout
        assert "job-1: model.py" in done.stdout
        assert "your own configuration" in done.stdout
        assert "plan written" in done.stdout
        listed = autotune_(tmp_path, "jobs", "--json", **settings)
        (job,) = json.loads(listed.stdout)
        assert (job["name"], job["state"], job["owner"], job["run"]) == ("tiny", "done", "ann", 1)
        done = autotune_(
            tmp_path, "fetch", "1", "-o", "got.yaml", "--report", "report.json", **settings
        )
        assert done.returncode == 0, done.stderr
    assert autotune.load_plan(tmp_path / "got.yaml").values
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["word"]
    run = open_store(str(tmp_path / "server" / "autotune.db"), read_only=True)
    with closing(run) as store:
        assert store.run("last").name == "job-1"


def test_a_cancelled_job_keeps_what_it_found(tmp_path, client_of):
    """Also one that was started by a server that was killed since."""
    (tmp_path / "client").mkdir()
    model = tmp_path / "client" / "model.py"
    model.write_text(TINY)
    with serving(tmp_path / "server", "--port", "0") as (server, address):
        job = client_of(address).submit(model, folder=model.parent, budget="10m", knobs="threads")
        number = job["id"]
        wait_until(lambda: client_of(address).job(number)["run"] is not None)
        wait_until(lambda: client_of(address).report(number)["outcomes"].get("ok"))
        server.kill()
        server.wait()
    with serving(tmp_path / "server", "--port", "0") as (_, address):
        client = client_of(address)
        assert client.job(number)["state"] == "running"
        assert client.cancel(number)["is_stopping"]
        *_, last = client.watch(number)
        assert (last.data["state"], last.data["exit_code"]) == ("cancelled", 130)
        assert last.data["num_starts"] == 1
        assert "trials are kept, and a plan" in last.text
        assert "plan:" in client.plan(number)


WAITS = "import sys, time\nprint('begun', flush=True)\ntime.sleep(120)\n"


def test_a_command_is_stopped_like_by_ctrl_c(tmp_path, client_of):
    """`autotune run` ends by itself; the job is cancelled, and its folder keeps the log."""
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "train.py").write_text(WAITS)
    with serving(tmp_path / "server", "--port", "0") as (_, address):
        client = client_of(address)
        job = client.submit(
            command=["python", "train.py"], folder=tmp_path / "client", budget="60s"
        )
        wait_until(lambda: client.job(job["id"])["state"] == "running")
        time.sleep(1)
        assert client.cancel(job["id"])["is_stopping"]
        kinds = [message.kind for message in client.watch(job["id"])]
        assert kinds[-1] == "end"
        assert client.job(job["id"])["state"] == "cancelled"


def test_a_watched_job_outlives_its_server(tmp_path, client_of):
    """The server is killed; the next one finds the job, and the watcher misses no line."""
    (tmp_path / "client").mkdir()
    code = "import time\nfor n in range(60): print('line', n, flush=True); time.sleep(0.1)\n"
    (tmp_path / "client" / "lines.py").write_text(code)
    port = str(free_port())
    address = f"http://127.0.0.1:{port}"
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    server = _start(script, tmp_path / "server", port)
    client = client_of(address)
    wait_until(lambda: _answers(client))
    job = client.submit(command=["python", "lines.py"], folder=tmp_path / "client")
    messages = []
    watcher = threading.Thread(target=lambda: messages.extend(client_of(address).watch(job["id"])))
    watcher.start()
    wait_until(lambda: any(message.kind == "output" for message in list(messages)))
    server.kill()
    server.wait()
    server = _start(script, tmp_path / "server", port)
    watcher.join(LIMIT_S)
    server.terminate()
    server.wait(30)
    lines = [message.text for message in messages if message.kind == "output"]
    assert lines == [f"line {number}" for number in range(60)]
    assert messages[-1].kind == "end"
    assert messages[-1].data["state"] == "done"
    assert messages[-1].data["num_starts"] == 1
    assert "lost" in {message.kind for message in messages}


# The command with the submitted one in place of `autotune run`.
STAND_IN = """
import sys
from dataclasses import replace
from autotune.cli.main import main
from autotune.service import running

run_server = running.run_server
def run_stand_ins(settings, *args, **options):
    command = lambda job, folder: [sys.executable, *job.new.request["command"][1:]]
    run_server(replace(settings, stand_in=command), *args, **options)
running.run_server = run_stand_ins
main()
"""


def _start(script, folder, port):
    return subprocess.Popen(
        [sys.executable, str(script), "serve", "--port", port],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
    )


def _answers(client):
    try:
        return client.jobs() is not None
    except ServerError:
        return False


def test_a_second_server_is_refused(tmp_path, url):
    """On one database only one is in charge; the next may start as soon as it is killed."""
    words = ("--port", "0", "--storage", url, "--folder", str(tmp_path / "service"))
    with serving(tmp_path, *words) as (first, address):
        second = autotune_(tmp_path, "serve", *words)
        assert second.returncode == 5
        assert f"the server at {address} (process {first.pid} on" in second.stderr
        assert "only one may be" in second.stderr
        assert "Traceback" not in second.stderr
        first.kill()
        first.wait()
        with serving(tmp_path, *words) as (_, next_address):
            assert next_address.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server(tmp_path, number):
    """Without a traceback; the lease is given back."""
    with serving(tmp_path, "--port", "0") as (process, _):
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stdout.read()
    with closing(open_store(str(tmp_path / "autotune.db"))) as store:
        assert store.lease("other:1:1.0", "").take() is None


def test_a_token_is_shown_once_and_kept_as_a_digest(type_command, tmp_path):
    """Listed by name, revoked by name."""
    status, out, err = type_command("autotune", "token", "create", "ann", "--max-hours", "2")
    assert status == 0
    assert "shown once" in err
    text = out.strip()
    assert text.startswith("autotune_")
    assert text.encode() not in (tmp_path / "autotune.db").read_bytes()
    status, out, _ = type_command("autotune", "token", "list", "--json")
    (listed,) = json.loads(out)
    assert (listed["name"], listed["role"], listed["max_hours"]) == ("ann", "submit", 2.0)
    assert type_command("autotune", "token", "revoke", "ann")[0] == 0
    assert json.loads(type_command("autotune", "token", "list", "--json")[1])[0]["revoked_at"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["token", "create"], "give one of 1 to 100 characters"),
        (["token", "create", "a:b"], "without colons"),
        (["token", "revoke", "bob"], "there is no token 'bob'"),
        (["submit"], "nothing to submit"),
        (["submit", "model.py"], "no server: name one with --server"),
        (["submit", "model.py", "--budget", "soon"], "is no duration"),
        (["submit", "none.py", "--server", "localhost:1"], "no token"),
        (["jobs", "--server", "ftp://x"], "is no address"),
        (["serve", "--devices", "1000"], "1000"),
        (["serve", "--python", "/no/python"], "no such interpreter"),
        (["serve", "--ray-address", "x:1"], "--devices"),
    ],
)
def test_a_mistake_is_explained(type_command, words, said, monkeypatch):
    """Before anything is done."""
    monkeypatch.setenv("AUTOTUNE_TOKEN_FILE", "/no/such/token")
    monkeypatch.delenv("AUTOTUNE_SERVER", raising=False)
    status, _, err = type_command("autotune", *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err


def test_a_token_file_that_others_may_read_is_refused(tmp_path):
    """With the command that closes it."""
    file = tmp_path / "token"
    file.write_text("autotune_x\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"chmod 600"):
        read_token(file)
    file.chmod(stat.S_IRUSR)
    assert read_token(file) == "autotune_x"


def test_the_package_offers_the_client():
    """It is imported when it is asked for; other names are no attributes."""
    assert autotune.Client is Client
    assert "Client" in autotune.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Clint'"):
        autotune.Clint  # noqa: B018  asked for


def test_what_cannot_be_reached_is_named(tmp_path):
    """With what to check."""
    client = Client(f"http://127.0.0.1:{free_port()}", "token", patience_s=0.3)
    with pytest.raises(ServerError, match="`autotune serve` runs there"):
        client.jobs()


def test_an_upload_of_gigabytes_is_refused_in_time(tmp_path, token):
    """Over a real connection, of what says how large it is and of what does not."""
    text = read_token(token)
    with serving(tmp_path / "server", "--port", "0") as (_, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        for length in ("Content-Length: 10737418240", "Transfer-Encoding: chunked"):
            answer, num_sent = _send_forever(port, text, length)
            assert b" 413 " in answer.splitlines()[0]
            assert b"larger than 100 MiB" in answer
            assert num_sent < 200 * 2**20
        with pytest.raises(NotAllowedError, match="no valid token"):
            Client(address, "stranger").jobs()


def _send_forever(port, token, length):
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"{length}\r\n\r\n"
    ).encode()
    body = b'--x\r\nContent-Disposition: form-data; name="archive"; filename="a"\r\n\r\n'
    body += bytes(2**20)
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if "chunked" in length else body
    num_sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head)
        # The server ends the connection when it has had enough.
        with contextlib.suppress(ConnectionError):
            while num_sent < 10 * 2**30:
                connection.sendall(chunk)
                num_sent += len(chunk)
                chunk = b"%x\r\n%b\r\n" % (2**20, bytes(2**20)) if "chunked" in length else chunk
        parts = []
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts), num_sent
