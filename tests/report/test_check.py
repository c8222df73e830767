"""What a check found, for people, CI servers and GitHub."""

import xml.etree.ElementTree as ET

import pytest

from autotune.agent.check.limits import Answer, Finding, Limit, Metric
from autotune.agent.check.sides import Checked, Level
from autotune.report.check import annotations, basis, check_view, junit_xml, sentence, verdict

DROP = Limit(metric=Metric.THROUGHPUT, share=0.05)
MEMORY = Limit(metric=Metric.MEMORY, share=0.1)
SLOWER = Finding(limit=DROP, change=-0.1, low=-0.12, high=-0.08, answer=Answer.BEYOND)
LARGER = Finding(limit=MEMORY, change=0.02, low=0.01, high=0.03, answer=Answer.WITHIN)
UNSURE = Finding(limit=DROP, change=-0.04, low=None, high=None, answer=Answer.UNKNOWN)


def checked(*findings, **changes):
    level = Level(
        name="main",
        commit=None,
        num_processes=3,
        throughput=100.0,
        low=99.0,
        high=101.0,
        memory_bytes=2**30,
        first_step_s=1.0,
    )
    values = {"now": level, "reference": level, "num_rounds": 3, "seconds": 60.0}
    return Checked(findings=findings, **{**values, **changes})


@pytest.mark.parametrize(
    ("found", "word", "failed"),
    [
        (checked(SLOWER, LARGER), "WORSE", True),
        (checked(LARGER), "WITHIN", False),
        (checked(UNSURE, LARGER), "NOT KNOWN", False),
        (checked(SLOWER, drops=2), "2 of 3 times in a row", False),
        (checked(SLOWER, drops=3), "WORSE than allowed", True),
        (checked(drops=0, reference=None), "FIRST", False),
    ],
)
def test_a_check_fails_only_where_it_is_sure(found, word, failed):
    """Beside stored figures it is sure at the third drop in a row."""
    assert word in verdict(found)
    assert check_view(found)["failed"] is failed


def test_a_finding_is_a_sentence():
    """The change, how sure it is, and what is allowed."""
    whole = checked(SLOWER)
    assert sentence(SLOWER, whole) == (
        "throughput 10.0 % less than main (99 % interval -12.0 to -8.0 %); 5.0 % less is allowed: "
        "beyond the limit"
    )
    assert "memory 2.0 % more than main" in sentence(LARGER, whole)
    assert "interval not known" in sentence(UNSURE, whole)
    assert basis(whole) == "3 fresh processes of each, in turn, 1m 00s"


def test_a_ci_server_reads_a_case_for_each_limit():
    """The failed one has the sentence."""
    suite = ET.fromstring(junit_xml(checked(SLOWER, LARGER), "model.py"))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    slower, larger = suite.findall("testcase")
    assert "10.0 % less" in slower.find("failure").get("message")
    assert larger.find("failure") is None


def test_github_annotates_what_is_not_within_its_limit():
    """Percent signs are written as its commands need them."""
    assert annotations(checked(LARGER)) == []
    (line,) = annotations(checked(SLOWER))
    assert line.startswith("::error title=autotune check::throughput 10.0 %25 less")
    (line,) = annotations(checked(UNSURE))
    assert line.startswith("::warning")
