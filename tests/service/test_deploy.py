"""The files of `deploy/`, as far as they can be checked without Docker."""

import shlex
from pathlib import Path

import typer
import yaml

from autotune.cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
OPTIONS = {
    flag
    for parameter in typer.main.get_command(app).commands["serve"].params
    for flag in parameter.opts
}


def test_the_compose_file_starts_the_command_with_options_that_it_has():
    """On PostgreSQL, with a host name that stays, and no password in a command line."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server = compose["services"]["server"]
    words = server["command"]
    assert words[0] == "serve"
    assert {word.partition("=")[0] for word in words[1:]} <= OPTIONS
    assert "--storage=postgresql://autotune@db/autotune" in words
    assert server["hostname"]
    assert server["init"] is True
    assert server["depends_on"]["db"]["condition"] == "service_healthy"
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert set(compose["volumes"]) == {"database", "data"}


def test_the_image_runs_the_command_as_a_user_of_its_own():
    """Submitted code runs as that user."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    by_word = {
        line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1]
        for line in lines
        if line[:1].isupper()
    }
    assert by_word["USER"] == "autotune"
    assert shlex.split(by_word["ENTRYPOINT"].strip("[]")) == ["autotune"]
    words = [word.strip('", ') for word in by_word["CMD"].strip("[]").split(",")]
    assert words[0] == "serve"
    assert {word for word in words if word.startswith("--")} <= OPTIONS
