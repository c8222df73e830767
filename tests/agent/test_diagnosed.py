"""What a diagnosis changes in a search: which trials get one, and what is tried first."""

import math
from dataclasses import replace

import pytest

from autotune.agent.durations import expected_s
from autotune.agent.levers import expectation, why
from autotune.agent.promising import Promising
from autotune.search_space.space import build_space
from autotune.trials.diagnosis import Bound, Diagnosis, Shares
from autotune.trials.result import Purpose
from tests.agent.test_proposers import history
from tests.agent.world import GPT, GPT_MODEL, GPU, Table, World, ok


def diagnosed(bound, *, idle=0.0, speed=50.0, took_s=0.0, **more):
    """A measured result with a diagnosis."""
    diagnosis = Diagnosis(
        bound=bound,
        evidence=(f"of a step: an idle device {idle:.0%}",),
        shares=Shares(idle=idle, forward=1 - idle),
        took_s=took_s,
    )
    return replace(ok(speed, **more), diagnosis=diagnosis)


def gains(seen):
    """Return how many times as fast each value of each knob should make a step."""
    return {
        (domain.knob.name, value): math.exp(expectation(domain.knob.name, value, seen, GPU).log)
        for domain in seen.space.domains
        for value in domain.values
    }


def test_faster_kernels_do_not_help_an_idle_device():
    """They shorten only the time in which the device has work."""
    idle = gains(history(({}, diagnosed(Bound.LAUNCHES, idle=0.8))))
    assert 1.0 < idle["precision", "bf16"] < 1 / 0.8
    busy = gains(history(({}, diagnosed(Bound.ARITHMETIC))))
    assert busy["precision", "bf16"] > 2.0
    assert idle["compile_mode", "default"] == busy["compile_mode", "default"] > 1.0


def test_the_idle_share_is_forgotten_once_launches_changed():
    """A plan with other launches than the diagnosed one may leave the device nothing idle."""
    baseline = ({}, diagnosed(Bound.LAUNCHES, idle=0.8))
    kept = history(baseline, ({"pin_memory": True}, ok(60.0)))
    assert gains(kept)["precision", "bf16"] < 1 / 0.8
    compiled = history(baseline, ({"compile_mode": "reduce-overhead"}, ok(200.0)))
    assert gains(compiled)["precision", "bf16"] > 2.0


def test_the_diagnosis_is_believed_over_the_step_time():
    """A short step that is busy is not taken for one that launches limit, and the reverse."""
    short_and_busy = history(({}, diagnosed(Bound.ARITHMETIC, speed=5000.0)))
    long_and_idle = history(({}, diagnosed(Bound.LAUNCHES, speed=50.0)))
    graphs = ("compile_mode", "reduce-overhead")
    assert gains(short_and_busy)[graphs] < 1.5 < gains(long_and_idle)[graphs]


def test_reasons_name_the_evidence():
    """A change that acts on the bound says so, with the numbers; others do not."""
    seen = history(({}, diagnosed(Bound.LAUNCHES, idle=0.6)))
    compiled = why("compile_mode", "default", seen.best, seen)
    assert "bound by launches (of a step: an idle device 60%)" in compiled
    assert "bound by" not in why("precision", "bf16", seen.best, seen)
    proposals = list(Promising(hardware=GPU, gain=0.01, chance=0.1).candidates(seen))
    compiling = [p for p in proposals if p.plan["compile_mode"] != "off"]
    assert compiling
    assert all("bound by launches" in proposal.reason for proposal in compiling)


def test_a_diagnosis_is_not_expected_again():
    """The seconds of the baseline's diagnosis are not those of trials to come."""
    space = build_space(GPT, GPU)
    seen = history(({}, diagnosed(Bound.ARITHMETIC, total_s=12.0, took_s=5.0)), space=space)
    assert expected_s(space.baseline, seen, GPU) == pytest.approx(7.0)


class DiagnosedWorld(World):
    """Answers with a diagnosis where one is asked for."""

    def __call__(self, request):
        result = super().__call__(request)
        if request.diagnosis is None:
            return result
        return replace(result, diagnosis=Diagnosis(bound=Bound.ARITHMETIC, evidence=("seen",)))


def test_the_baseline_and_the_leader_of_the_confirmation_are_diagnosed():
    """The winner has a diagnosis, and no plan spends the seconds of a second one."""
    table = Table(DiagnosedWorld(GPT_MODEL), GPT, budget_s=600)
    winner = table.search().run()
    asked = [request for request in table.world.requests if request.diagnosis is not None]
    assert asked[0].purpose is Purpose.BASELINE
    assert {request.purpose for request in asked[1:]} == {Purpose.CONFIRM}
    plans = [request.plan for request in asked]
    assert winner.plan in plans
    assert len(plans) == len(set(plans)) <= 3
