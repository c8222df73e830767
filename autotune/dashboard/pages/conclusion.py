"""The top of a run's page: the verdict, why the winner is faster, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.pages.next_steps import next_steps
from autotune.dashboard.waterfall import waterfall
from autotune.report.verdict import Verdict, Word, verdict_of
from autotune.report.why import Share, Why, why_of
from autotune.report.words import UNKNOWN, duration, gib, knob_value, samples
from autotune.search_space.plan import Plan, spell
from autotune.storage.records import NOT_SEARCHED, RunRecord, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Purpose

COLOURS = {
    Word.CONFIRMED: "green",
    Word.UNCERTAIN: "yellow",
    Word.NO_GAIN: "gray",
    Word.REJECTED: "red",
}
# The answer where the baseline is kept.
_KEPT = {
    Word.REJECTED: "Keep your baseline: what was faster may not be used.",
    Word.NO_GAIN: "Keep your baseline: nothing that was tried is faster.",
    Word.UNCERTAIN: "Keep your baseline for now: it is not known whether another plan is faster.",
}
MAX_TRIALS = 2000
"""Trials that the verdict is built from: of larger runs the latest, and all that compare plans."""
MAX_REJECTED = 3
CLEARLY = 1.1
"""How many times as fast as the winner a trial must be to be named beside it."""
ALWAYS = (Purpose.BASELINE, Purpose.CONFIRM, Purpose.ABLATE, Purpose.NUMERICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a run with a winner comes to.

    Attributes:
        run: the run.
        view: the same as `run_view` gives it.
        verdict: on the winner.
        why: the winner is faster; None where it is not known.
        faster_once: the trial that gave clearly more than the winner and might have won.
    """

    run: RunRecord
    view: dict[str, Any]
    verdict: Verdict
    why: Why | None
    faster_once: TrialRecord | None


def conclusion_of(store: SqlStore, run: RunRecord, view: dict[str, Any]) -> Conclusion | None:
    """Return the conclusion of a run; None while it has no winner.

    Args:
        store: where it is.
        run: the run.
        view: the same as `run_view` gives it.
    """
    if run.winner is None:
        return None
    trials = _trials(store, run)
    verdict = verdict_of(run, trials)
    assert verdict is not None
    return Conclusion(
        run=run,
        view=view,
        verdict=verdict,
        why=why_of(run, trials),
        faster_once=_faster_once(run, verdict, trials),
    )


def _faster_once(
    run: RunRecord, verdict: Verdict, trials: Sequence[TrialRecord]
) -> TrialRecord | None:
    """Return the fastest trial of a plan that may win, if it beats the winner by a tenth."""
    assert run.winner is not None
    again = (trial.plan for trial in trials if trial.purpose is Purpose.CONFIRM)
    out = {run.winner.plan, *again, *(other.plan for other in verdict.disqualified)}
    fair = [
        (trial.result.measurement.throughput, trial)
        for trial in trials
        if trial.result is not None
        and trial.result.measurement is not None
        and trial.num_ranks == run.new.num_ranks
        and trial.purpose not in NOT_SEARCHED
        and trial.plan not in out
    ]
    best = max(fair, key=lambda found: found[0], default=None)
    is_for_speed = run.new.objective["name"] == "throughput"
    if best is None or not is_for_speed or best[0] < CLEARLY * (run.winner.own.throughput or 0):
        return None
    return best[1]


def _trials(store: SqlStore, run: RunRecord) -> list[TrialRecord]:
    latest = store.some_trials(run.id, store.statistics(run).latest(MAX_TRIALS))
    if run.num_trials <= MAX_TRIALS:
        return latest
    found = {trial.number: trial for trial in (*latest, *store.trials_for(run.id, ALWAYS))}
    return [found[number] for number in sorted(found)]


def conclusion(store: SqlStore, found: Conclusion) -> Component:
    """Return the verdict, why the winner is faster, and what to do next."""
    return dmc.Box(
        [
            _verdict(found),
            _why(found) if found.why is not None else None,
            next_steps(store, found.run, found.verdict),
        ]
    )


def _verdict(found: Conclusion) -> Component:
    verdict, winner = found.verdict, found.view["winner"]
    word = dmc.Badge(verdict.word.value, color=COLOURS[verdict.word], size="xl", radius="sm")
    lines = [
        dmc.Group([word, dmc.Text(answer(found), fw=700, size="xl", id="answer-words")], gap="sm"),
        dmc.Text(certainty(verdict), mt="xs"),
        dmc.Text(f"It rests on {verdict.rests_on}.", size="sm", c="dimmed"),
        dmc.SimpleGrid(_tiles(found), cols={"base": 2, "md": 4}, mt="md"),
        _won(winner),
        _remarks(winner["remarks"]),
        _rejected(found),
        _unconfirmed(found),
    ]
    return html.Section(
        dmc.Paper(
            lines,
            withBorder=True,
            p="md",
            mb="md",
            className=f"verdict {COLOURS[verdict.word]}",
        ),
        id="verdict",
    )


def answer(found: Conclusion) -> str:
    """Return what won and by how much, in one sentence."""
    if found.verdict.kept_baseline:
        return _KEPT[found.verdict.word]
    winner = found.view["winner"]
    if found.run.new.objective["name"] == "memory":
        own, theirs = gib(winner["memory_bytes"]), gib(winner["baseline_memory_bytes"])
        return f"The winner needs {own} GiB in place of {theirs} GiB."
    if winner["train_s"] is not None:
        own, theirs = duration(winner["train_s"]), duration(winner["baseline_train_s"])
        return f"The winner trains in {own} in place of {theirs}."
    if found.verdict.speedup is None:
        return "The winner's speed-up is not known."
    may = "may be" if found.verdict.word is Word.UNCERTAIN else "is"
    return f"The winner {may} {found.verdict.speedup:.2f} times as fast as your baseline."


def certainty(verdict: Verdict) -> str:
    """Return how sure the speed-up is, in one sentence."""
    if verdict.speedup is None:
        return "No other plan was measured." if verdict.plan is None else ""
    whose = "of the best other plan " if verdict.kept_baseline else ""
    if verdict.low is None or verdict.high is None:
        return (
            f"How sure the speed-up {whose}of {verdict.speedup:.2f} is, is not known: it was "
            "measured too few times, or too unevenly."
        )
    return (
        f"95 % interval of the speed-up {whose}({verdict.speedup:.2f}): "
        f"{verdict.low:.2f} to {verdict.high:.2f}."
    )


def _tiles(found: Conclusion) -> list[Component]:
    winner = found.view["winner"]
    own = "Baseline again" if winner["kept_baseline"] else "Winner"
    tiles = [
        _tile("Baseline", samples(winner["baseline_throughput"]), "samples/s"),
        _tile(own, samples(winner["throughput"]), "samples/s"),
        _tile("Speed-up", _times(found.verdict), _interval(found.verdict)),
        _tile(
            "Peak memory",
            gib(winner["memory_bytes"]),
            f"GiB; baseline {gib(winner['baseline_memory_bytes'])} GiB",
        ),
    ]
    if winner["train_s"] is not None:
        tiles.append(_time_to_train(winner))
    return tiles


def _tile(name: str, value: str, unit: str) -> Component:
    return dmc.Paper(
        [
            dmc.Text(name, size="sm", c="dimmed"),
            dmc.Text(value, size="xl", fw=700),
            dmc.Text(unit, size="xs", c="dimmed"),
        ],
        withBorder=True,
        p="sm",
    )


def _times(verdict: Verdict) -> str:
    return UNKNOWN if verdict.speedup is None else f"{verdict.speedup:.2f}x"


def _interval(verdict: Verdict) -> str:
    if verdict.low is None or verdict.high is None:
        return "interval not known"
    return f"{verdict.low:.2f} to {verdict.high:.2f}"


def _time_to_train(winner: dict[str, Any]) -> Component:
    ours, theirs = duration(winner["train_s"]), duration(winner["baseline_train_s"])
    starts = f"start-up {duration(winner['start_s'])}, {duration(winner['baseline_start_s'])}"
    return _tile("Time to train", ours, f"baseline {theirs}; {starts}")


def _won(winner: dict[str, Any]) -> Component | None:
    """Return the settings that won, each as a chip."""
    if not winner["changes"]:
        return None
    chips = [
        dmc.Code(f"{knob}={knob_value(change['value'])}")
        for knob, change in winner["changes"].items()
        if change["value"] is not None
    ]
    return dmc.Group([dmc.Text("What won:", fw=600), *chips], gap="xs", mt="md")


def _remarks(remarks: Sequence[str]) -> Component | None:
    # How sure the speed-up is, the verdict says itself.
    read = [_sentence(remark) for remark in remarks if not remark.startswith("this is uncertain")]
    return parts.notes("Before you use it", read, "yellow") if read else None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rejected(found: Conclusion) -> Component | None:
    """Return the plans that were faster and may not win, with the reason of each."""
    if not found.verdict.disqualified:
        return None
    baseline = found.run.new.baseline
    items = [
        f"{samples(out.throughput)} samples/s with {_named(out.plan, baseline)}: "
        f"{out.reason.value}; {out.why}"
        for out in found.verdict.disqualified[:MAX_REJECTED]
    ]
    return parts.notes("Faster, but not allowed to win", items, "red")


def _unconfirmed(found: Conclusion) -> Component | None:
    """Return a note on the trial that was faster than the winner and was not run again."""
    trial = found.faster_once
    if trial is None or trial.result is None or trial.result.measurement is None:
        return None
    named = _named(trial.plan, found.run.new.baseline)
    gave = samples(trial.result.measurement.throughput)
    told = (
        f"Trial {trial.number} gave {gave} samples/s once, with {named}. It was not run again in "
        "a fresh process, so it could not win; a longer --budget has time for that."
    )
    return parts.notes("Faster once, not confirmed", [told], "blue")


def _named(plan: Plan, baseline: Plan) -> str:
    changes = plan.diff(baseline).items()
    return " ".join(f"{knob}={spell(value)}" for knob, (value, _) in changes if value is not None)


def _why(found: Conclusion) -> Component:
    why = found.why
    assert why is not None
    unit = "GiB of peak memory" if why.is_memory else "samples/s"
    rows = [_row(found, share) for share in why.shares]
    columns = ("Setting", "Before", "Worth", "95 % interval", "First in")
    return parts.section(
        "Why",
        waterfall(why),
        parts.table(columns, rows),
        about=(
            f"From baseline to winner in {unit}: what each setting multiplies it by, estimated "
            "from all measured trials. Settings that no trial tells apart are one bar."
        ),
    )


def _row(found: Conclusion, share: Share) -> list[parts.Child]:
    baseline = found.run.new.baseline.values
    before = ", ".join(knob_value(baseline.get(knob)) for knob in share.settings)
    known = share.low is not None and share.high is not None
    return [
        ", ".join(f"{knob}={spell(value)}" for knob, value in share.settings.items()),
        before,
        "within noise" if share.is_noise else f"x {share.factor:.2f}",
        f"{share.low:.2f} to {share.high:.2f}" if known else "not known",
        parts.link(f"trial {share.trial}", f"/runs/{found.run.id}/trials/{share.trial}"),
    ]
