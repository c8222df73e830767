"""Writes a diagnosis as text, from its JSON form, for the terminal and the dashboard."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from autotune.report.words import UNKNOWN, percent
from autotune.search_space.bound import Bound

# The parts of a step, by their keys in `Diagnosis.shares`.
SHARES = {
    "data": "waiting for data",
    "copy": "copying to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "idle": "idle device",
    "other": "other",
}
# The kinds of findings, by their keys.
_KINDS = {
    "graph_break": "graph break",
    "host_sync": "host synchronisation",
    "print": "print",
    "shape": "shape",
    "loader": "loader",
    "batch_loss": "batch",
    "attention": "attention",
    "anti_pattern": "anti-pattern",
}


def bound(diagnosis: dict[str, Any]) -> str:
    """Return what limits the step, such as `launches`, or that this cannot be told."""
    if diagnosis["bound"] is not None:
        return Bound(diagnosis["bound"]).words
    return "cannot tell" if "bound" in diagnosis["unknown"] else UNKNOWN


def facts(diagnosis: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) pairs: the bound with its evidence, FLOPs, speed of the loader alone."""
    yield "bound by", bound(diagnosis)
    if diagnosis["bound"] is None and "bound" in diagnosis["unknown"]:
        yield "because", diagnosis["unknown"]["bound"]
    yield "evidence", "\n".join(diagnosis["evidence"]) or _why_unknown(["bound"], diagnosis)
    yield "model FLOPs", _model_flops(diagnosis)
    loader, step = diagnosis["loader_samples_per_s"], diagnosis["step_samples_per_s"]
    if loader is not None and step is not None:
        yield "loader alone", f"{loader:,.4g} samples/s; the step without waiting: {step:,.4g}"
    checks = "findings", "graph_breaks", "batch_loss"
    unknown = [name for name in checks if name in diagnosis["unknown"]]
    if unknown:
        yield "not checked", _why_unknown(unknown, diagnosis)
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


def source_of_share(share: str, diagnosis: dict[str, Any]) -> str:
    """Return how a part's share of the step was measured, or why it is unknown."""
    if diagnosis["shares"][share] is None:
        why = diagnosis["unknown"].get(share) or diagnosis["unknown"].get("bound")
        return str(why or diagnosis["unknown"].get("everything", UNKNOWN))
    return str(diagnosis["how"].get(share, ""))


def findings(diagnosis: dict[str, Any]) -> list[str]:
    """Return a line for each finding in the user's code: what, where, and what to do."""
    return [
        f"{_KINDS[finding['kind']]}{_where(finding)}: {finding['what']} -> {finding['advice']}"
        for finding in diagnosis["findings"]
    ]


def _where(finding: dict[str, Any]) -> str:
    if finding["file"] is None:
        return ""
    return f", {os.path.relpath(finding['file'])}:{finding['line']}"
