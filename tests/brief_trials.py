"""Trials that measure for a second at most: real ones, of which a run has time for many.

As a program (`python -m tests.brief_trials run model.py`) it is the `autotune` command with such
trials and no more than three rounds of confirmation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from autotune.agent import bench, session
from autotune.agent.settings import SearchSettings
from autotune.cli.main import main
from autotune.trials.request import Protocol

BRIEF = Protocol(window_s=0.1, min_windows=3, max_measure_s=1.0, max_warm_up_s=1.0)


@contextmanager
def brief_trials() -> Iterator[None]:
    """Let the trials of commands that are typed in this process be brief."""
    with (
        mock.patch.object(SearchSettings, "protocol", BRIEF),
        mock.patch.object(session, "SearchSettings", partial(SearchSettings, max_rounds=3)),
        mock.patch.object(bench, "Protocol", return_value=BRIEF),
    ):
        yield


if __name__ == "__main__":
    with brief_trials():
        main()
