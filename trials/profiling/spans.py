"""Intervals of time, and how long they last together. All are in one unit, whichever."""

from collections.abc import Iterable, Mapping, Sequence

Span = tuple[float, float]
"""Start and end."""


def covered(spans: Iterable[Span]) -> float:
    """Return the length of the union of the spans, which may overlap and be in any order."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def covered_beyond(groups: Mapping[str, Sequence[Span]]) -> dict[str, float]:
    """Return for each group the length of its union outside of the groups before it."""
    alone: dict[str, float] = {}
    before: list[Span] = []
    for name, spans in groups.items():
        both = [*before, *spans]
        alone[name] = covered(both) - covered(before)
        before = both
    return alone


def own_durations(spans: Sequence[Span]) -> list[float]:
    """Return the length of each span without the spans inside of it, in the order of `spans`.

    Spans must nest, as calls do.
    """
    own = [end - start for start, end in spans]
    open_spans: list[int] = []
    # The outer one first where two begin together.
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1])):
        start, end = spans[index]
        while open_spans and spans[open_spans[-1]][1] <= start:
            open_spans.pop()
        if open_spans:
            own[open_spans[-1]] -= end - start
        open_spans.append(index)
    return own
