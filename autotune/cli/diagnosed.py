"""How a diagnosis is printed: alone, or that of a baseline beside that of a winner."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from autotune.cli.output import UNKNOWN, percent, print_facts, print_lines, print_table
from autotune.trials.diagnosis import Bound

_SHARES = {
    "data": "waiting for data",
    "copy": "copying to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "idle": "idle device",
    "other": "other",
}
_KINDS = {
    "graph_break": "graph break",
    "host_sync": "host synchronisation",
    "print": "print",
    "shape": "shape",
    "loader": "loader",
}


def print_diagnosis(diagnosis: dict[str, Any]) -> None:
    """Print one diagnosis, the JSON form of `Diagnosis`, with all of its evidence."""
    print_facts(_facts(diagnosis))
    rows = [
        (words, percent(diagnosis["shares"][name]), _how(name, diagnosis))
        for name, words in _SHARES.items()
    ]
    print_table(("of a step", "share (%)", "how it is known"), rows)
    for title, lines in (("what to do", diagnosis["advice"]), ("in your code", _code(diagnosis))):
        if lines:
            print_lines(f"{title}:", *(f"  {line}" for line in lines))


def print_side_by_side(diagnoses: dict[str, Any]) -> None:
    """Print those that there are, of `baseline` and `winner`, in columns; nothing without any."""
    known = {name: found for name, found in diagnoses.items() if found is not None}
    if not known:
        return
    rows = [("bound by", *(_bound(found) for found in known.values()))]
    rows += [
        (f"{words} (%)", *(percent(found["shares"][name]) for found in known.values()))
        for name, words in _SHARES.items()
        if any(found["shares"][name] is not None for found in known.values())
    ]
    rows.append(("model FLOPs utilisation (%)", *(percent(f["mfu"]) for f in known.values())))
    print_table(("of a step", *known), rows)
    for name, found in known.items():
        findings = _code(found)
        if findings:
            print_lines(f"in your code, seen in the {name}:", *(f"  {line}" for line in findings))


def _bound(diagnosis: dict[str, Any]) -> str:
    return UNKNOWN if diagnosis["bound"] is None else Bound(diagnosis["bound"]).words


def _facts(diagnosis: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "bound by", _bound(diagnosis)
    yield "evidence", "\n".join(diagnosis["evidence"]) or _why_unknown(["bound"], diagnosis)
    yield "model FLOPs", _model_flops(diagnosis)
    loader, step = diagnosis["loader_samples_per_s"], diagnosis["step_samples_per_s"]
    if loader is not None and step is not None:
        yield "loader alone", f"{loader:,.4g} samples/s; the step without waiting: {step:,.4g}"
    unknown = [name for name in ("findings", "graph_breaks") if name in diagnosis["unknown"]]
    if unknown:
        yield "not looked at", _why_unknown(unknown, diagnosis)
    if diagnosis["trace_path"] is not None:
        yield "trace", f"{diagnosis['trace_path']}, for ui.perfetto.dev or chrome://tracing"
    yield "took", f"{diagnosis['took_s']:.1f} s"


def _model_flops(diagnosis: dict[str, Any]) -> str:
    flops, rate = diagnosis["flops_per_sample"], diagnosis["matmul_flops_per_s"]
    if flops is None or rate is None:
        return _why_unknown(["findings", "matmul_flops_per_s"], diagnosis)
    return (
        f"{flops:.3g} for a sample; {percent(diagnosis['mfu'])} % of the "
        f"{rate / 1e12:.3g} TFLOP/s of a large matrix product"
    )


def _why_unknown(names: Iterable[str], diagnosis: dict[str, Any]) -> str:
    unknown = diagnosis["unknown"]
    reasons = [
        f"{name.replace('_', ' ')}: {unknown[name]}"
        for name in (*names, "everything")
        if name in unknown
    ]
    return f"unknown ({'; '.join(reasons)})"


def _how(share: str, diagnosis: dict[str, Any]) -> str:
    if diagnosis["shares"][share] is None:
        why = diagnosis["unknown"].get(share) or diagnosis["unknown"].get("bound")
        return str(why or diagnosis["unknown"].get("everything", UNKNOWN))
    return str(diagnosis["how"].get(share, ""))


def _code(diagnosis: dict[str, Any]) -> list[str]:
    return [
        f"{_KINDS[finding['kind']]}{_where(finding)}: {finding['what']} -> {finding['advice']}"
        for finding in diagnosis["findings"]
    ]


def _where(finding: dict[str, Any]) -> str:
    if finding["file"] is None:
        return ""
    return f", {os.path.relpath(finding['file'])}:{finding['line']}"
