"""Writes a verdict and its why as text, for the terminal, plan files and the dashboard."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autotune.agent.conclusion.explain import TRAINING_CHANGES
from autotune.agent.objectives.objective import ObjectiveName
from autotune.report.verdict import Reason, Verdict, Word
from autotune.report.why import Share, Why
from autotune.report.words import samples, size
from autotune.search_space.plan import Value, spell

_WHY_REJECTED = {
    Reason.NUMERICS: "does not compute what eager fp32 does",
    Reason.MEMORY: "leaves too little memory",
    Reason.FAILED_AGAIN: "failed when it ran again",
}
_FASTER = "a trial was faster"
_ONE_EACH = "one training each"
# Begin the remarks that warn, in the words of the conclusion that wrote them.
_WARNINGS = (
    "by how much is not known well",
    "this is uncertain",  # as earlier versions wrote it
    "not confirmed",
    "numerics not checked",
    "passed over",
    "it may be better without",
    "your batch_size",
    "other programs used",
)


def label(verdict: Verdict) -> str:
    """Return the verdict in one word, with the reason of a rejection: `REJECTED (numerics)`."""
    return verdict.word if verdict.reason is None else f"{verdict.word} ({verdict.reason})"


def headline(verdict: Verdict) -> str:
    """Return the verdict in one line: `CONFIRMED: 2.41 times as fast as your baseline (...)`."""
    return f"{label(verdict)}: {claim(verdict)}"


def claim(verdict: Verdict) -> str:
    """Return what a verdict says: the speed-up with its interval, or to keep the baseline."""
    if verdict.kept_baseline:
        return f"keep your baseline; {_of_others(verdict)}"
    fast = f"{_times_as_fast(verdict)} as your baseline ({interval(verdict)})"
    if verdict.objective is ObjectiveName.MEMORY and verdict.memory is not None:
        return f"{times(verdict.memory)} the memory of your baseline, {fast}"
    if verdict.objective is ObjectiveName.TIME_TO_TRAIN and verdict.train is not None:
        return f"{times(verdict.train)} the time to train of your baseline, {fast}"
    if verdict.objective is ObjectiveName.TIME_TO_QUALITY:
        return f"{_to_target(verdict)}, {fast}"
    return fast


def _to_target(verdict: Verdict) -> str:
    """Return how long a winner trained to its target, beside the baseline, in words."""
    if verdict.reached_s is None:
        return "its target was not reached"
    reached = f"its target reached in {verdict.reached_s:.1f} s of training"
    if verdict.train is None:
        return f"{reached}, and not by your baseline in the time it had ({_ONE_EACH})"
    return f"{reached}, {times(verdict.train)} that of your baseline ({_ONE_EACH})"


def _of_others(verdict: Verdict) -> str:
    """Return how the best plan did beside a baseline that is kept."""
    if verdict.plan is None:
        return "no other plan was measured"
    if verdict.reached_s is not None:
        reached = f"in {verdict.reached_s:.1f} s of training"
        return f"it reached its target first, {reached} ({_ONE_EACH})"
    if verdict.speedup is None:
        return "no other plan is better"
    fast = f"{_times_as_fast(verdict)}"
    if verdict.reason is not None:
        return f"a plan {fast} {_WHY_REJECTED[verdict.reason]}"
    may = "may be" if verdict.word == Word.UNCERTAIN else "is"
    return f"the best other plan {may} {fast} ({interval(verdict)})"


def _times_as_fast(verdict: Verdict) -> str:
    return "some times as fast" if verdict.speedup is None else f"{times(verdict.speedup)} as fast"


def interval(known: Verdict | Share) -> str:
    """Return a 95 % interval: `2.25 to 2.58`, or that it is not known."""
    if known.low is None or known.high is None:
        return "interval not known"
    return f"95 % interval {known.low:.2f} to {known.high:.2f}"


def times(factor: float) -> str:
    """Return a factor in words: `2.41 times`."""
    return f"{factor:.2f} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the waterfall from the baseline to the winner, as text.

    Attributes:
        what: `your baseline`, settings as `--fix` takes them, or `winner`.
        worth: the factor of the settings; empty for the first and the last line.
        interval: its 95 % interval.
        so_far: the factor over the baseline up to here.
        note: why the settings may be faster, or the figure of the first and the last line.
        before, after: the factors over the baseline before and after the line, for a bar.
    """

    what: str
    worth: str
    interval: str
    so_far: str
    note: str
    before: float
    after: float


def waterfall(why: Why, reasons: Mapping[str, str]) -> list[Line]:
    """Return the lines of the waterfall, the baseline first and the winner last.

    Args:
        why: what the settings are worth.
        reasons: for each changed knob what it does, as the run's winner has them.
    """
    lines = [_end("your baseline", why.baseline, 1.0, why)]
    product = 1.0
    for share in why.shares:
        before, product = product, product * share.factor
        lines.append(
            Line(
                what=settings_words(share.settings),
                worth=f"{share.factor:.2f}",
                interval=_bounds(share),
                so_far=f"{product:.2f}",
                note=_note(share, reasons),
                before=before,
                after=product,
            )
        )
    return [*lines, _end("winner", why.winner, why.factor, why)]


def _end(what: str, figure: float, factor: float, why: Why) -> Line:
    return Line(
        what=what,
        worth="",
        interval="",
        so_far=f"{factor:.2f}",
        note=size(int(figure)) if why.is_memory else f"{samples(figure)} samples/s",
        before=1.0,
        after=factor,
    )


def _bounds(share: Share) -> str:
    if share.low is None or share.high is None:
        return "not known"
    return f"{share.low:.2f} to {share.high:.2f}"


def _note(share: Share, reasons: Mapping[str, str]) -> str:
    if share.is_noise and len(share.settings) == 1:
        return "within noise"
    if share.is_noise:
        holds_1 = share.low is not None and share.high is not None and share.low < 1 < share.high
        return "each within noise" if holds_1 else "together, not known one by one"
    if len(share.settings) > 1 and share.high is not None and share.high < 1:
        return "together, not measured apart; may hold what other lines gain only together"
    if len(share.settings) > 1:
        return "together, not measured apart"
    return reasons.get(next(iter(share.settings)), "")


def settings_words(settings: Mapping[str, Value]) -> str:
    """Return settings as `--fix` takes them: `precision=bf16 workers=4`."""
    return " ".join(f"{knob}={spell(value)}" for knob, value in settings.items())


def why_lines(why: Why) -> tuple[str, ...]:
    """Return a line for each share of the winner's speed-up: `1.50 times (1.45 to 1.55): ...`."""
    return tuple(
        f"{times(share.factor)} ({_bounds(share)}): {settings_words(share.settings)}"
        + ("" if not share.is_noise else f", {_note(share, {})}")
        for share in why.shares
    )


def explained_changes(reasons: Mapping[str, str], why: Why | None) -> dict[str, str]:
    """Return for each changed knob what it is worth and what it does, in one line."""
    worths = dict(_worths(why.shares)) if why else {}
    return {
        knob: f"{worths[knob]}: {reason}" if knob in worths else reason
        for knob, reason in reasons.items()
    }


def _worths(shares: Iterable[Share]) -> Iterator[tuple[str, str]]:
    for share in shares:
        for knob in share.settings:
            others = [other for other in share.settings if other != knob]
            together = f" together with {', '.join(others)}" if others else ""
            noise = ", within noise" if share.is_noise else ""
            yield knob, f"{times(share.factor)} ({_bounds(share)}){together}{noise}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """The remarks on a winner by what the reader does with them.

    Attributes:
        training: what the user's training must change.
        warnings: what makes the result less certain.
        notes: the rest.
    """

    training: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def sorted_remarks(remarks: Iterable[str], verdict: Verdict) -> Remarks:
    """Sort the remarks on a winner: what the training must change, warnings, and notes."""
    found = [*_passed_by(verdict), *remarks]
    changed = [one for one in found if one.startswith(TRAINING_CHANGES)]
    training = [one.removeprefix(f"{TRAINING_CHANGES}: ") for one in changed]
    warnings = [one for one in found if one.startswith((*_WARNINGS, _FASTER))]
    notes = [one for one in found if one not in changed and one not in warnings]
    return Remarks(training=tuple(training), warnings=tuple(warnings), notes=tuple(notes))


def _passed_by(verdict: Verdict) -> Iterator[str]:
    """Yield that a trial was faster than the winner and could not be measured again."""
    faster = verdict.not_confirmed
    if faster is not None:
        yield (
            f"{_FASTER} and was not measured again: trial {faster.trial} with "
            f"{samples(faster.throughput)} samples/s; give a longer --budget to confirm it"
        )
