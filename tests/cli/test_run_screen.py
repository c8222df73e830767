"""What `autotune run` shows while it goes on, replayed from real runs on an H200."""

import io
import re
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.agent.proposal import Proposal
from autotune.cli.live import RunScreen
from autotune.clock import Budget, FakeClock
from autotune.search_space.plan import Plan
from autotune.storage.records import RunState
from autotune.storage.sql import open_store
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
FAILED_CHECK = NumericsReport(
    deviations=(Deviation(part=Part.LOSS, what="loss", seen=0.5, allowed=0.1),)
)


class Replay:
    """A run of the store, told to a screen trial by trial."""

    def __init__(self, url, name, columns):
        with closing(open_store(url, read_only=True)) as store:
            self.run = store.run(name)
            self.trials = store.trials_for(self.run.id, list(Purpose))
        self.file, self.clock = io.StringIO(), FakeClock()
        is_terminal = columns is not None
        console = Console(
            file=self.file, width=columns, force_terminal=is_terminal, legacy_windows=False
        )
        self.screen = RunScreen(console)
        budget = Budget(clock=self.clock, total_s=self.run.new.budget_s, started_at=0.0)
        # As it was when its first trial began.
        began = replace(self.run, winner=None, state=RunState.RUNNING)
        self.screen.begin(began, budget, [])

    def proposal(self, trial):
        return Proposal(
            plan=trial.plan,
            purpose=trial.purpose,
            reason=trial.reason,
            num_ranks=trial.num_ranks,
        )

    def tell(self, trials):
        for trial in trials:
            proposal = self.proposal(trial)
            self.screen.on_submit(trial.number, proposal)
            self.screen.on_finish(trial.number, proposal, trial.result)

    @property
    def lines(self):
        return [line.rstrip() for line in ESCAPES.sub("", self.file.getvalue()).splitlines()]

    def below(self):
        """Return the lines of the part that changes in place."""
        printed = Console(file=io.StringIO(), width=self.screen._console.width)
        printed.print(self.screen._below())
        return [line.rstrip() for line in printed.file.getvalue().splitlines()]


@pytest.fixture
def replay(h200):
    """Return a run that is told to a screen of so many columns; None: to a pipe."""
    return lambda name, columns: Replay(h200, name, columns)


@pytest.mark.parametrize("columns", [80, 100, 160, None])
def test_each_trial_is_one_line(columns, replay):
    """Number, the trial it started from, figures, outcome, and as much of the change as fits."""
    told = replay("resnet50", columns)
    told.tell(told.trials)
    heads, *lines = told.lines
    assert heads.split()[:4] == ["#", "from", "samples/s", "times"]
    assert len(lines) == len(told.trials)
    assert " ".join(lines[0].split()) == "1 - 264.1 1.00 6.56 GiB ok your own configuration"
    assert " ".join(lines[2].split()) == "3 2 2,034 7.70 6.35 GiB ok batch_size=128"
    assert lines[5].split()[-4:] == ["check", "of", "its", "numerics"]
    assert lines[6].endswith("measured again")
    assert lines[7].endswith("back to batch_size=64")
    assert max(map(len, lines)) <= (columns or 1000)


def test_the_numbers_stand_in_the_same_columns_at_every_width(replay):
    """Only the last column depends on the terminal."""
    shown = []
    for columns in (80, 160):
        told = replay("recommender", columns)
        told.tell(told.trials)
        shown.append([line[:56] for line in told.lines[1:]])
    assert shown[0] == shown[1]


def test_below_the_trials_stands_what_goes_on(replay):
    """What the run does, the time left, the baseline, the best so far, and running trials."""
    told = replay("resnet50", 100)
    told.tell(told.trials[:3])
    running = told.trials[3]
    told.clock.sleep(60.0)
    told.screen.on_submit(running.number, told.proposal(running))
    told.screen.on_phases({running.number: Phase.FIRST_STEP})
    rule, head, trial = told.below()
    assert set(rule) == {"─"}
    assert head == (
        "searching | 1m 10s of 2m 10s left | baseline 264.1 samples/s | best 7.70 times (trial 3)"
    )
    assert "trial 4, from 3: cudnn_benchmark=true optimizer_impl=fused" in trial
    assert re.search(r"first step, \d\.\d s$", trial)


def test_before_the_workload_is_known_the_screen_says_so():
    """The first second has a word, too."""
    screen = RunScreen(Console(file=io.StringIO(), width=80, force_terminal=True))
    console = Console(file=io.StringIO(), width=80)
    console.print(screen._below())
    assert "starting, and looking at the workload" in console.file.getvalue()


def test_a_plan_that_fails_its_check_is_no_longer_the_best(replay):
    """The best so far is one that may win, and the trial that may not is named."""
    told = replay("resnet50", 100)
    told.tell(told.trials[:4])
    assert told.below()[1].endswith("best 10.10 times (trial 4)")
    checked = replace(
        told.trials[5],
        number=9,
        result=TrialResult(outcome=Outcome.OK, numerics=FAILED_CHECK),
    )
    told.tell([checked])
    assert "failed" in told.lines[-2]
    # The precision is what failed, so other plans of it are suspect.
    which = "trials 2, 3 and 4 may not win"
    assert told.lines[-1] == f"{which}: `autotune show resnet50 2` says why"
    assert told.below()[1].endswith("best 1.00 times (trial 1)")


def test_a_run_that_goes_on_shows_its_earlier_trials(replay):
    """Numbers and changes refer to them."""
    told = replay("resnet50", 100)
    budget = Budget(clock=FakeClock(), total_s=100.0, started_at=0.0)
    told.screen.begin(told.run, budget, told.trials[:2])
    told.tell(told.trials[2:3])
    assert [line.split()[0] for line in told.lines if line[:4].strip().isdigit()] == [
        "1",
        "2",
        "3",
    ]


def test_a_smaller_batch_than_the_users_is_told(replay):
    """The baseline that ran is the user's configuration with what did not fit changed."""
    told = replay("resnet50", None)
    first = told.trials[0]
    smaller = Plan.of({**first.plan.values, "batch_size": 8})
    oom = replace(first, result=TrialResult(outcome=Outcome.OOM, error="no memory"))
    told.tell([oom, replace(first, number=2, plan=smaller)])
    assert "out of memory  your own configuration" in told.lines[1]
    assert told.lines[2].endswith("your own configuration with batch_size=8")


def test_what_is_worth_asking_is_a_change_of_the_winner(replay):
    """The worth of a setting is measured on the winner, whichever trial was the fastest."""
    told = replay("recommender", 160)
    told.tell(told.trials)
    (line,) = [line for line in told.lines if "back to" in line]
    assert " ".join(line.split()).startswith("10 5 ")
