"""What `autotune check` found, in words, as JSON, as JUnit's XML and as GitHub's annotations."""

import xml.etree.ElementTree as ET
from dataclasses import asdict
from typing import Any

from autotune.agent.check.checking import is_failed
from autotune.agent.check.history import STRIKES
from autotune.agent.check.limits import Answer, Finding, Metric
from autotune.agent.check.sides import Checked, Level
from autotune.report.words import duration, percent


def verdict(checked: Checked) -> str:
    """Return the answer in a few words."""
    if checked.reference is None:
        return "FIRST: nothing to compare with yet; these numbers are kept"
    if is_failed(checked):
        return "WORSE than allowed"
    if checked.drops:
        return f"WORSE than allowed, {checked.drops} of {STRIKES} times in a row: not failed yet"
    if any(found.answer is Answer.UNKNOWN for found in checked.findings):
        return "NOT KNOWN well enough in this time; give a longer --budget"
    return "WITHIN the limits"


def sentence(found: Finding, checked: Checked) -> str:
    """Return what was found of a metric, beside its limit."""
    assert checked.reference is not None
    difference = f"{_amount(found, found.change)} than {checked.reference.name}"
    interval = "interval not known"
    if found.low is not None and found.high is not None:
        interval = f"99 % interval {_signed(found.low)} to {_signed(found.high)} %"
    allowed = f"{percent(found.limit.share)} % {_worse(found.limit.metric)} is allowed"
    return f"{found.limit.metric.value} {difference} ({interval}); {allowed}: {found.answer.value}"


def basis(checked: Checked) -> str:
    """Return what the answer rests on."""
    processes = "process" if checked.num_rounds == 1 else "processes"
    each = " of each, in turn" if checked.drops is None else ""
    return f"{checked.num_rounds} fresh {processes}{each}, {duration(checked.seconds)}"


def check_view(checked: Checked) -> dict[str, Any]:
    """Return a check as plain JSON values."""
    return {
        "failed": is_failed(checked),
        "verdict": verdict(checked),
        "now": _level_view(checked.now),
        "reference": checked.reference and _level_view(checked.reference),
        "findings": [_finding_view(found) for found in checked.findings],
        "num_rounds": checked.num_rounds,
        "seconds": checked.seconds,
        "drops": checked.drops,
    }


def junit_xml(checked: Checked, name: str) -> str:
    """Return a test suite with a case for each limit, as CI servers read it."""
    suite = ET.Element("testsuite", name="autotune check", tests=str(len(checked.findings)))
    suite.set("time", f"{checked.seconds:.3f}")
    suite.set("failures", str(len(_broken(checked))))
    for found in checked.findings:
        case = ET.SubElement(suite, "testcase", classname=name, name=found.limit.metric.value)
        if found in _broken(checked):
            ET.SubElement(case, "failure", message=sentence(found, checked))
        else:
            ET.SubElement(case, "system-out").text = sentence(found, checked)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def annotations(checked: Checked) -> list[str]:
    """Return the lines from which GitHub makes annotations of a workflow's run."""
    lines = []
    for found in checked.findings:
        if found.answer is Answer.WITHIN:
            continue
        level = "error" if found in _broken(checked) else "warning"
        lines.append(f"::{level} title=autotune check::{_escaped(sentence(found, checked))}")
    return lines


def _broken(checked: Checked) -> list[Finding]:
    if not is_failed(checked):
        return []
    return [found for found in checked.findings if found.answer is Answer.BEYOND]


def _amount(found: Finding, change: float) -> str:
    more = "longer" if found.limit.metric is Metric.FIRST_STEP else "more"
    less = "shorter" if found.limit.metric is Metric.FIRST_STEP else "less"
    return f"{percent(abs(change))} % {more if change > 0 else less}"


def _worse(metric: Metric) -> str:
    return {Metric.THROUGHPUT: "less", Metric.MEMORY: "more", Metric.FIRST_STEP: "longer"}[metric]


def _signed(change: float) -> str:
    return f"{100 * change:+.1f}"


def _level_view(level: Level) -> dict[str, Any]:
    commit = level.commit
    shown = commit and {**asdict(commit), "at": commit.at.isoformat()}
    return {**asdict(level), "commit": shown}


def _finding_view(found: Finding) -> dict[str, Any]:
    return {
        "metric": found.limit.metric.value,
        "limit": found.limit.share,
        "change": found.change,
        "low": found.low,
        "high": found.high,
        "answer": found.answer.name.lower(),
    }


def _escaped(text: str) -> str:
    """Return a text as GitHub's workflow commands take it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
