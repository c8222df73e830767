"""What to do after a run: the commands, and the lines that train with its winner."""

from collections.abc import Iterator, Sequence

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.export.contents import plan_file_of
from autotune.export.header import start_line, training_lines
from autotune.report.next_steps import export_command, longer_run_command
from autotune.report.verdict import Verdict, Word
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.sql import SqlStore

FILE = "plan.yaml"


def next_steps(
    store: SqlStore, run: RunRecord, trials: Sequence[TrialRecord], verdict: Verdict
) -> Component:
    """Return the section that says what to do next."""
    steps = list(_steps(store, run, trials, verdict))
    return parts.section("What to do next", dmc.Stack(steps, gap="sm"))


def _steps(
    store: SqlStore, run: RunRecord, trials: Sequence[TrialRecord], verdict: Verdict
) -> Iterator[Component]:
    if verdict.kept_baseline:
        yield dmc.Text("Train as you do now. With more time, the search may find more:")
        yield parts.commands([longer_run_command(run)])
        return
    if verdict.word is Word.UNCERTAIN:
        yield dmc.Text("Make sure first, with more time and nothing else on the machine:")
        yield parts.commands([longer_run_command(run)])
        yield dmc.Text("Or use the winner as it is. Write its plan file:")
    else:
        yield dmc.Text("Write the plan file:")
    yield parts.commands([export_command(run, FILE, store.url)])
    file = plan_file_of(run, trials)
    yield dmc.Text("Train with it:")
    yield parts.commands(training_lines(file, FILE))
    if (start := start_line(file)) is not None:
        yield dmc.Text(f"It is for {file.ranks} ranks; start the script with:")
        yield parts.commands([start])
