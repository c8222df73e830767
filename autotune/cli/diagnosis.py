"""Prints one diagnosis, or those of a baseline and a winner side by side."""

from typing import Any

from autotune.cli.output import print_facts, print_notes, print_table
from autotune.report.diagnosis import SHARES, bound, facts, findings, source_of_share
from autotune.report.words import percent


def print_diagnosis(diagnosis: dict[str, Any]) -> None:
    """Print a diagnosis, given in its JSON form, with all of its evidence."""
    print_facts(facts(diagnosis))
    rows = [
        (words, percent(diagnosis["shares"][name]), source_of_share(name, diagnosis))
        for name, words in SHARES.items()
    ]
    print_table(("of a step", "share (%)", "how it is known"), rows)
    for title, lines in (
        ("what to do", diagnosis["advice"]),
        ("in your code", findings(diagnosis)),
    ):
        if lines:
            print_notes(title, lines)


def print_side_by_side(diagnoses: dict[str, Any]) -> None:
    """Print the diagnoses of `baseline` and `winner` in columns; one may be None, or both."""
    known = {name: found for name, found in diagnoses.items() if found is not None}
    if not known:
        return
    rows = [("bound by", *(bound(found) for found in known.values()))]
    rows += [
        (f"{words} (%)", *(percent(found["shares"][name]) for found in known.values()))
        for name, words in SHARES.items()
        if any(found["shares"][name] is not None for found in known.values())
    ]
    rows.append(("model FLOPs utilisation (%)", *(percent(f["mfu"]) for f in known.values())))
    print_table(("of a step", *known), rows)
    for name, found in known.items():
        if lines := findings(found):
            print_notes(f"in your code, found in the {name}", lines)
