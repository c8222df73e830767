"""Draws docs/run.svg: what `autotune run` showed in a real run, by the code that shows it.

    python docs/recorded_run.py

The run is one of tests/data/h200.db, which holds runs of a machine with an NVIDIA H200.
"""

import io
import os
import re
import shutil
import sys
import tempfile
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.text import Text

from autotune.agent.proposal import Proposal
from autotune.cli.live import RunScreen
from autotune.cli.run import print_end, print_introduction
from autotune.clock import Budget, FakeClock
from autotune.search_space.facts import WorkloadFacts
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import open_store
from autotune.trials.result import Purpose

DOCS = Path(__file__).parent
STORE = DOCS.parent / "tests" / "data" / "h200.db"
PICTURE = DOCS / "run.svg"
RUN = "resnet50"
COLUMNS = 100
# Rich names a font on another server; a picture of a README may not load it.
_FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


class Terminal(io.StringIO):
    """What a program printed that took this for a terminal."""

    def isatty(self) -> bool:
        """Return True, so that programs print colours and keep to the width."""
        return True


def main(path: Path = PICTURE) -> None:
    """Write the picture to a file."""
    run, trials = read_run(RUN)
    name = Path(run.new.workload_path).name
    command = f"autotune run {name} --budget {run.new.budget_s:.0f}s"
    path.write_text(picture(printed(run, trials), command))


def read_run(name: str) -> tuple[RunRecord, list[TrialRecord]]:
    """Return a recorded run and its trials; the store may be of an older version, so copy it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(STORE, folder)
        with closing(open_store(str(copy))) as store:
            run = store.run(name)
            return run, store.trials_for(run.id, list(Purpose))


def printed(run: RunRecord, trials: list[TrialRecord]) -> str:
    """Return what the terminal held when the run had ended."""
    # As it was when its first trial began.
    began = replace(run, winner=None, state=RunState.RUNNING, num_trials=0, used_s=0.0)
    terminal = Terminal()
    colours = {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with mock.patch.dict(os.environ, colours), redirect_stdout(terminal):
        os.environ.pop("NO_COLOR", None)
        console = Console(highlight=False)
        print_introduction(console, began, WorkloadFacts.from_dict(dict(run.new.facts)))
        screen = RunScreen(console)
        budget = Budget(clock=FakeClock(), total_s=run.new.budget_s, started_at=0.0)
        screen.begin(began, budget, [])
        for trial in trials:
            proposal = Proposal(
                plan=trial.plan,
                purpose=trial.purpose,
                reason=trial.reason,
                num_ranks=trial.num_ranks,
            )
            screen.on_submit(trial.number, proposal)
            assert trial.result is not None
            screen.on_finish(trial.number, proposal, trial.result)
        print_end(run, trials, Path("plan.yaml"), None)
    return terminal.getvalue()


def picture(text: str, title: str) -> str:
    """Return a terminal with a text in it, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text), soft_wrap=True)
    svg = console.export_svg(title=f"$ {title}")
    return _FONT_FACES.sub("", svg)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
