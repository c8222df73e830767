"""What can be asked of a job."""

import pytest
import typer

from autotune.cli.main import app
from autotune.errors import UsageError
from autotune.service.request import OPTIONS, JobRequest


def test_options_become_words_that_cannot_be_taken_for_others():
    """Values stand behind `=`, a file begins with `./`, the command behind `--`."""
    request = JobRequest.from_dict(
        {
            "model": "-x.py",
            "arguments": ["--size", "3"],
            "budget": "2h",
            "options": {"fix": ["a=1", "b=--fresh"], "trials": 3, "numerics": "--storage"},
        }
    )
    assert request.run_words() == [
        "./-x.py",
        "--budget=2h",
        "--fix=a=1",
        "--fix=b=--fresh",
        "--trials=3",
        "--numerics=--storage",
        "--",
        "--size",
        "3",
    ]
    command = JobRequest.from_dict({"command": ["python", "train.py", "--fresh"]})
    assert command.run_words() == ["--budget=15m", "--", "python", "train.py", "--fresh"]


def test_a_request_survives_json():
    """As the store keeps it."""
    request = JobRequest(command=("python", "t.py"), options={"fix": ["a=1"]}, priority=3)
    assert JobRequest.from_dict(request.to_dict()) == request


def test_every_option_is_one_of_the_command():
    """So that a job that is taken can be typed."""
    run = typer.main.get_command(app).commands["run"]
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= {
        flag for parameter in run.params for flag in parameter.opts
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a job is a JSON object"),
        ({}, "`model`.*or a `command`"),
        ({"model": "m.py", "command": ["a"]}, "one of both"),
        ({"model": "../m.py"}, "inside of the workload's folder"),
        ({"model": "/etc/m.py"}, "inside of the workload's folder"),
        ({"model": "m.txt"}, "no Python file"),
        ({"model": 3}, "no str"),
        ({"model": "m\0.py"}, "NUL"),
        ({"model": "m.py", "modle": 1}, "did you mean 'model'"),
        ({"model": "m.py", "budget": "soon"}, "no duration"),
        ({"model": "m.py", "budget": 3}, "no str"),
        ({"model": "m.py", "priority": 11}, "out of range"),
        ({"model": "m.py", "priority": True}, "no int"),
        ({"model": "m.py", "devices": 0}, "1 or more"),
        ({"model": "m.py", "name": ""}, "1 to 100 characters"),
        ({"model": "m.py", "folder": "here"}, "no absolute path"),
        ({"model": "m.py", "python": "python3"}, "no absolute path"),
        ({"model": "m.py", "options": {"storage": "x"}}, "no option 'storage'"),
        ({"model": "m.py", "options": {"fix": "a=1"}}, "no list of words"),
        ({"model": "m.py", "options": {"trials": "3"}}, "no int"),
        ({"model": "m.py", "options": [1]}, "is a JSON object"),
        ({"command": "python train.py"}, "no list of words"),
        ({"command": ["python", "\0"]}, "NUL"),
    ],
)
def test_what_cannot_be_followed_is_explained(document, said):
    """Before anything is queued."""
    with pytest.raises(UsageError, match=said):
        JobRequest.from_dict(document)
