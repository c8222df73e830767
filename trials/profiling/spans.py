"""Stretches of time and how they overlap; in any unit, as long as it is one."""

from collections.abc import Iterable, Mapping, Sequence

Span = tuple[float, float]
"""Start and end."""


def covered(spans: Iterable[Span]) -> float:
    """Return how long at least one of the spans lasts; they may overlap, in any order."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def covered_beyond(groups: Mapping[str, Sequence[Span]]) -> dict[str, float]:
    """Return for each group how long it lasts while none of the groups before it does."""
    alone: dict[str, float] = {}
    before: list[Span] = []
    for name, spans in groups.items():
        both = [*before, *spans]
        alone[name] = covered(both) - covered(before)
        before = both
    return alone


def own_durations(spans: Sequence[Span]) -> list[float]:
    """Return how long each span lasts without those inside of it, in the order of `spans`.

    They must nest, as calls do.
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
