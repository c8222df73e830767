"""What tests of several folders share."""

import os
import sys
from unittest import mock

import pytest

from autotune.cli.main import run_command_line


@pytest.fixture(autouse=True)
def own_environment():
    """Give the environment back as it was: a rank of a trial sets torchrun's variables in it."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def type_command(tmp_path, monkeypatch, capsys):
    """Type a command line in this test's folder; give its status, stdout and stderr.

    It runs in this process: starting one for each would take most of the tests' time.
    """
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", list(words))
        status = run_command_line()
        out, err = capsys.readouterr()
        return status, out, err

    return typed
