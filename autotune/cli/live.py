"""The screen of `autotune run`: a line for each trial that ended, and below them what goes on."""

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from autotune.agent.history import SEARCH
from autotune.agent.objectives.objective import Figures
from autotune.agent.objectives.stored import objective_from
from autotune.agent.proposal import Proposal
from autotune.cli.trial_lines import OUT, TrialLine, heading, trial_text
from autotune.clock import Budget, in_words
from autotune.report.lineage import Lineage, Origin, change_words, fitted
from autotune.report.verdict import disqualified
from autotune.report.words import phase_words, samples
from autotune.search_space.plan import Plan
from autotune.storage.records import RunRecord, TrialRecord
from autotune.trials.result import Measurement, Phase, Purpose, TrialResult

_SPINNER = "dots"
_REFRESHES_PER_S = 4  # more would take time from trials on a machine with few cores
# What the run does while trials of these purposes run.
_STEPS = {
    Purpose.BASELINE: "measuring your baseline",
    Purpose.CONFIRM: "confirming",
    Purpose.NUMERICS: "checking the numerics",
    Purpose.ABLATE: "what is each setting worth?",
    Purpose.QUALITY: "training to the target",
}


class RunScreen:
    """Shows a run from its first second on.

    Each trial that ended is a line that stays. On a terminal there is a part below that changes
    in place: what the run does, the time left, the baseline, the best so far, and the running
    trials with their phase. It is a context manager and, once `begin` was called, an `Observer`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else None
        self._lineage = Lineage(Plan.of({}))
        self._ended: list[TrialRecord] = []
        self._running: dict[int, _Running] = {}
        self._run: RunRecord | None = None
        self._budget: Budget | None = None
        self._best: TrialRecord | None = None
        self._starting = Spinner(_SPINNER, "starting, and looking at the workload", style="cyan")
        self._live = Live(
            get_renderable=self._below,
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
        )

    def __enter__(self) -> Self:
        """Start the part that changes in place."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the part that changes in place."""
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, run: RunRecord, budget: Budget, earlier: list[TrialRecord]) -> None:
        """Print the heading of the trials, and the trials of an earlier session of the run."""
        self._run, self._budget = run, budget
        self._lineage = Lineage(run.new.baseline)
        self._console.print(heading(), soft_wrap=True)
        for trial in earlier:
            if trial.result is not None:
                self._end(trial)

    def on_submit(self, number: int, proposal: Proposal) -> None:
        """Show a running trial."""
        origin = self._lineage.origin(proposal.plan, proposal.purpose, proposal.num_ranks)
        self._running[number] = _Running(self._record(number, proposal, None), origin)

    def on_phases(self, phases: Mapping[int, Phase]) -> None:
        """Show the phases of the running trials."""
        for number, phase in phases.items():
            if number in self._running:
                self._running[number].phase = phase

    def on_finish(self, number: int, proposal: Proposal, result: TrialResult) -> None:
        """Print the line of a trial that ended."""
        self._running.pop(number, None)
        self._end(self._record(number, proposal, result))

    def on_note(self, text: str) -> None:
        """Print a remark of the agent."""
        self._console.print(Text(text, style="italic"), soft_wrap=self._width is None)

    def _record(self, number: int, proposal: Proposal, result: TrialResult | None) -> TrialRecord:
        assert self._run is not None
        return TrialRecord(
            run_id=self._run.id,
            number=number,
            plan=proposal.plan,
            purpose=proposal.purpose,
            reason=proposal.reason,
            started_at=datetime.now(UTC),
            finished_at=None,
            log_path=None,
            result=result,
            num_ranks=proposal.num_ranks,
        )

    def _end(self, trial: TrialRecord) -> None:
        """Print the line of a trial, and which plans it has disqualified."""
        out = self._numbers_out()
        origin = self._lineage.origin(trial.plan, trial.purpose, trial.num_ranks)
        self._ended.append(trial)
        measured = _measured(trial)
        if measured is not None:
            self._lineage.add(trial.number, trial.plan, trial.num_ranks, measured.throughput)
        baseline = self._baseline(trial.num_ranks)
        now_out = self._numbers_out()
        line = TrialLine(
            number=trial.number,
            origin=origin.trial,
            change=change_words(origin, trial.purpose, self._shown_ranks(trial)),
            result=trial.result,
            baseline=baseline.throughput if baseline else None,
            mark=OUT if trial.number in now_out else None,
        )
        self._console.print(trial_text(line, self._width), soft_wrap=True)
        self._best = self._find_best(now_out)
        if newly := sorted(now_out - out - {trial.number}):
            which = f"trial {newly[0]}" if len(newly) == 1 else f"trials {_listed(newly)}"
            command = f"autotune show {self._run_name} {newly[0]}"
            self.on_note(f"{which} may not win: `{command}` says why")

    @property
    def _run_name(self) -> str:
        assert self._run is not None
        return self._run.name

    def _shown_ranks(self, trial: TrialRecord) -> int:
        """Return the number of devices to show; 1 where all trials have as many."""
        assert self._run is not None
        return trial.num_ranks if self._run.new.num_ranks > 1 else 1

    def _numbers_out(self) -> set[int]:
        assert self._run is not None
        found = disqualified(self._run, self._ended)
        return {number for plan in found for number in plan.trials}

    def _baseline(self, num_ranks: int) -> Measurement | None:
        found = (
            _measured(trial)
            for trial in self._ended
            if trial.purpose is Purpose.BASELINE and trial.num_ranks == num_ranks
        )
        return next((measured for measured in found if measured), None)

    def _find_best(self, out: Collection[int]) -> TrialRecord | None:
        """Return the best trial that may win, by the objective; None before there is one.

        Args:
            out: numbers of trials that may not win.
        """
        assert self._run is not None
        ranks = self._run.new.num_ranks
        baseline = self._baseline(ranks)
        if baseline is None:
            return None
        objective = objective_from(self._run.new.objective)

        def value(trial: TrialRecord) -> float:
            measured = _measured(trial)
            assert measured is not None
            return objective.value(_figures(measured), _figures(baseline))

        found = [
            trial
            for trial in self._ended
            if (measured := _measured(trial)) is not None
            and not measured.raced
            and trial.num_ranks == ranks
            and trial.purpose in SEARCH
            and trial.number not in out
        ]
        return max(found, key=value, default=None)

    def _below(self) -> RenderableType:
        """Return the part that changes in place."""
        if self._run is None:
            return self._starting
        grid = Table.grid(padding=(0, 1))
        for number, running in self._running.items():
            grid.add_row(running.spinner, self._running_text(number, running))
        return Group(Rule(style="dim"), self._head(), grid)

    def _head(self) -> Text:
        """Return what the run does, the time left, the baseline and the best so far."""
        assert self._budget is not None
        assert self._run is not None
        left, total = in_words(self._budget.remaining_s), in_words(self._budget.total_s)
        text = Text(f"{self._step()}", style="bold cyan")
        parts = [f"{left} of {total} left"]
        baseline, best = self._baseline(self._run.new.num_ranks), self._best
        if baseline is not None:
            parts.append(f"baseline {samples(baseline.throughput)} samples/s")
        measured = _measured(best) if best else None
        if best is not None and baseline is not None and measured is not None:
            ratio = measured.throughput / baseline.throughput
            parts.append(f"best {ratio:.2f} times (trial {best.number})")
        for part in parts:
            text.append(f" | {part}", style="default")
        return text

    def _step(self) -> str:
        purposes = [running.trial.purpose for running in self._running.values()]
        return next((_STEPS[p] for p in purposes if p in _STEPS), "searching")

    def _running_text(self, number: int, running: "_Running") -> Text:
        trial, origin = running.trial, running.origin
        start = f"trial {number}" + ("" if origin.trial is None else f", from {origin.trial}: ")
        start = start if origin.trial is not None else f"{start}: "
        seconds = in_words(time.monotonic() - running.since)
        end = f"  {phase_words(running.phase)}, {seconds}"
        room = self._console.width - len(start) - len(end) - 3
        words = change_words(origin, trial.purpose, self._shown_ranks(trial))
        text = Text(start + fitted(words, room), no_wrap=True)
        text.append(end, style="dim")
        return text


class _Running:
    """A running trial with its phase, and since when it runs on `time.monotonic()`."""

    def __init__(self, trial: TrialRecord, origin: Origin) -> None:
        self.trial, self.origin = trial, origin
        self.phase, self.since = Phase.START, time.monotonic()
        self.spinner = Spinner(_SPINNER, style="cyan")


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _measured(trial: TrialRecord) -> Measurement | None:
    return trial.result.measurement if trial.result else None


def _figures(measured: Measurement) -> Figures:
    return Figures(
        throughput=measured.throughput,
        start_s=measured.build_s + measured.first_step_s,
        memory_bytes=measured.memory_bytes,
    )
