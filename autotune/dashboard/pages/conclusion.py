"""The top of a run's page: the verdict, why the winner is faster, and what to do next."""

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.pages.next_steps import next_steps
from autotune.dashboard.waterfall import waterfall
from autotune.report.as_json import Conclusion
from autotune.report.conclusion import claim, interval, label, settings_words, sorted_remarks
from autotune.report.reading import conclusion_of
from autotune.report.verdict import Disqualified, Verdict, Word
from autotune.report.why import Share, Why
from autotune.report.words import UNKNOWN, duration, gib, knob_value, samples
from autotune.search_space.changes import changes
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Purpose

COLOURS = {
    Word.CONFIRMED: "green",
    Word.UNCERTAIN: "yellow",
    Word.NO_GAIN: "gray",
    Word.REJECTED: "red",
}
MAX_TRIALS = 2000
"""Trials that the verdict is built from: of larger runs the latest, and all that compare plans."""
ALWAYS = (Purpose.BASELINE, Purpose.CONFIRM, Purpose.ABLATE, Purpose.NUMERICS)
MAX_REJECTED = 3


def conclusion(store: SqlStore, run: RunRecord, view: dict[str, Any]) -> Component | None:
    """Return the verdict, why the winner is faster, and what to do next; None without a winner.

    Args:
        store: where the run is.
        run: the run.
        view: the same as `run_view` gives it.
    """
    trials = _trials(store, run)
    found = conclusion_of(run, trials)
    if found is None:
        return None
    return dmc.Box(
        [
            _verdict(run, found, view["winner"]),
            _why(run, found.why) if found.why is not None else None,
            next_steps(store, run, trials, found.verdict),
        ]
    )


def _trials(store: SqlStore, run: RunRecord) -> list[TrialRecord]:
    latest = store.some_trials(run.id, store.statistics(run).latest(MAX_TRIALS))
    if run.num_trials <= MAX_TRIALS:
        return latest
    found = {trial.number: trial for trial in (*latest, *store.trials_for(run.id, ALWAYS))}
    return [found[number] for number in sorted(found)]


def _verdict(run: RunRecord, found: Conclusion, winner: dict[str, Any]) -> Component:
    verdict, colour = found.verdict, COLOURS[found.verdict.word]
    said = claim(verdict)
    word = dmc.Badge(label(verdict), color=colour, size="xl", radius="sm", miw="max-content")
    remarks = sorted_remarks(winner["remarks"], verdict)
    lines = [
        dmc.Group([word, dmc.Text(said[:1].upper() + said[1:], fw=700, size="xl")], gap="sm"),
        dmc.Text(f"It rests on {verdict.rests_on}.", size="sm", c="dimmed", mt="xs"),
        dmc.SimpleGrid(_tiles(verdict, winner), cols={"base": 2, "md": 4}, mt="md"),
        _won(winner),
        _notes("Your training must change", remarks.training, "blue"),
        _notes("Be careful", remarks.warnings, "yellow"),
        _notes("Faster, but not allowed to win", _rejected(run, verdict.disqualified), "red"),
        _notes("Also", remarks.notes, "gray"),
    ]
    frame = dmc.Paper(lines, withBorder=True, p="md", mb="md", className=f"verdict {colour}")
    return html.Section(frame, id="verdict")


def _notes(heading: str, texts: Sequence[str], colour: str) -> Component | None:
    return parts.notes(heading, [_sentence(text) for text in texts], colour) if texts else None


def _sentence(text: str) -> str:
    """Return the text with a capital letter, but for one that begins with a knob."""
    return text if "=" in text.split(maxsplit=1)[0] else text[:1].upper() + text[1:]


def _rejected(run: RunRecord, out: Sequence[Disqualified]) -> list[str]:
    """Return a line for each plan that was faster and may not win, with the reason."""
    return [
        f"{samples(other.throughput)} samples/s with {_changes(run, other)}: {other.why}"
        for other in out[:MAX_REJECTED]
    ]


def _changes(run: RunRecord, out: Disqualified) -> str:
    changed = changes(out.plan, run.new.baseline).items()
    return settings_words({knob: value for knob, value in changed if value is not None})


def _tiles(verdict: Verdict, winner: dict[str, Any]) -> list[Component]:
    baseline = parts.tile("Baseline", samples(winner["baseline_throughput"]), "samples/s")
    memory = f"GiB; baseline {gib(winner['baseline_memory_bytes'])} GiB"
    if verdict.kept_baseline:
        best = parts.tile("Best other plan", _times(verdict), interval(verdict))
        return [baseline, best]
    tiles = [
        baseline,
        parts.tile("Winner", samples(winner["throughput"]), "samples/s"),
        parts.tile("Speed-up", _times(verdict), interval(verdict)),
        parts.tile("Peak memory", gib(winner["memory_bytes"]), memory),
    ]
    if winner["train_s"] is not None:
        tiles.append(_time_to_train(winner))
    return tiles


def _times(verdict: Verdict) -> str:
    return UNKNOWN if verdict.speedup is None else f"{verdict.speedup:.2f}x"


def _time_to_train(winner: dict[str, Any]) -> Component:
    ours, theirs = duration(winner["train_s"]), duration(winner["baseline_train_s"])
    if winner["start_s"] is None:
        return parts.tile("Training to the target", ours, f"baseline {theirs}")
    starts = f"start-up {duration(winner['start_s'])}, {duration(winner['baseline_start_s'])}"
    return parts.tile("Time to train", ours, f"baseline {theirs}; {starts}")


def _won(winner: dict[str, Any]) -> Component | None:
    """Return the winner's settings that differ from the baseline's; None where none does."""
    chips = [
        dmc.Code(f"{knob}={knob_value(change['value'])}")
        for knob, change in winner["changes"].items()
        if change["value"] is not None
    ]
    return dmc.Group([dmc.Text("What won:", fw=600), *chips], gap="xs", mt="md") if chips else None


def _why(run: RunRecord, why: Why) -> Component:
    unit = "GiB of peak memory" if why.is_memory else "samples/s"
    columns = ("Setting", "Before", "Worth", "95 % interval", "First in")
    return parts.section(
        "Why",
        waterfall(why),
        parts.table(columns, [_row(run, share) for share in why.shares]),
        about=(
            f"From baseline to winner in {unit}: what each setting multiplies it by, estimated "
            "from all measured trials. Settings that no trial tells apart are one bar."
        ),
    )


def _row(run: RunRecord, share: Share) -> list[parts.Child]:
    baseline = run.new.baseline.values
    known = share.low is not None and share.high is not None
    return [
        settings_words(share.settings),
        " ".join(f"{knob}={knob_value(baseline.get(knob))}" for knob in share.settings),
        "within noise" if share.is_noise else f"x {share.factor:.2f}",
        f"{share.low:.2f} to {share.high:.2f}" if known else "not known",
        parts.link(f"trial {share.trial}", f"/runs/{run.id}/trials/{share.trial}"),
    ]
