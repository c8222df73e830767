"""`autotune dashboard`, as it is typed."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from autotune.cli import dashboard as command
from tests.dashboard.conftest import serving


def test_a_port_in_use_is_explained(type_command):
    """With another to choose."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, out, err = type_command("autotune", "dashboard", "--port", port)
    assert status == 2
    assert f"port {port} of 127.0.0.1 is in use" in err
    assert "--port 0" in err
    assert out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "203.0.113.1"], "use an address of this machine"),
        (["--host", "no such name"], "use an address of this machine"),
        (["--token", "short"], "use 8 or more"),
        (["--storage", "mysql://a/b"], "SQLite or PostgreSQL"),
    ],
)
def test_a_mistake_is_explained(type_command, words, said):
    """Before anything is served."""
    status, _, err = type_command("autotune", "dashboard", *words)
    assert status in {2, 5}
    assert said in err
    assert "Traceback" not in err


def test_a_missing_extra_is_named(type_command, monkeypatch):
    """With the exact line that installs it."""
    monkeypatch.setattr(
        command, "REQUIRED_PACKAGES", (*command.REQUIRED_PACKAGES, "no_such_package")
    )
    status, _, err = type_command("autotune", "dashboard")
    assert status == 2
    assert "pip install 'torch-autotune[dashboard]'" in err
    assert "no_such_package" in err


def test_a_token_is_printed_where_others_can_connect(tmp_path):
    """The address that is printed opens the page; the same without the token does not."""
    with serving(tmp_path, "--host", "0.0.0.0") as address:
        port = address.partition("?")[0].rstrip("/").rpartition(":")[2]
        token = address.partition("?token=")[2]
        assert len(token) >= 32
        local = f"http://127.0.0.1:{port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(local)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{local}?token={token}") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(tmp_path, number):
    """Without a traceback; Ctrl-C is how it is meant to end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "dashboard", "--port", "0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(command.__file__.partition("/autotune/cli")[0]), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert err == ""
    if number == signal.SIGINT:
        assert process.returncode == 0


def test_neither_torch_nor_ray_is_imported():
    """The page opens at once also where they take seconds, or are missing."""
    code = (
        "import sys; from autotune.dashboard.app import make_app; make_app(None); "
        "print([n for n in ('torch', 'ray', 'optuna') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
