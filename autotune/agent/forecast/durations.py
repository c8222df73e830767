"""How long a trial will take, learnt from those that ran."""

import statistics

from autotune.agent.done import Done, lengths_s
from autotune.agent.history import SEARCH, History
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.knobs.compiler import (
    CompilerSetup,
    compiler_setup,
    compiles_blocks,
    is_compiled,
    usual_first_step_s,
)
from autotune.search_space.plan import Plan
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.result import Outcome, Phase, Purpose

# First step of `default` where it is known how many operations a step on a GPU launches.
_ANY_FIRST_STEP_S, _FIRST_STEP_OF_OP_S = 4.0, 0.0175
_LEAST_SCALE = 0.5
_UNKNOWN_S = 10.0
# Part of a cold first step that the compiler's cache saves: an LM of 269 M took 14.5 s, then 4.6
# and 4.1 s.
_CACHED = 0.6
_MARGIN = 1.1  # an ending is priced above its expectation: one trial of five takes longer


def expected_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of a trial of `plan`, in seconds."""
    own = [t for t in history.done if t.plan == plan and t.result.measurement]
    if own:
        return _again_s(own[-1], history, hardware)
    # A trial that was stopped lasted at least as long as it did.
    stopped = max(lengths_s(t for t in history.search if t.plan == plan), default=0.0)
    return max(stopped, _steady_s(history) + expected_first_step_s(plan, history, hardware))


def _again_s(last: Done, history: History, hardware: Hardware) -> float:
    measurement = last.result.measurement
    if measurement is None or not is_compiled(last.plan):
        return last.undiagnosed_s
    again_s = expected_first_step_s(last.plan, history, hardware)
    return last.undiagnosed_s - measurement.first_step_s + again_s


def uncached_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return what `expected_s` does, were nothing of the plan in the compiler's cache.

    It is another one on each node.
    """
    usual_s = expected_s(plan, history, hardware)
    if not is_compiled(plan):
        return usual_s
    spared_s = _uncached_first_step_s(plan, history, hardware)
    spared_s -= expected_first_step_s(plan, history, hardware)
    return usual_s + max(0.0, spared_s)


def wall_clock_s(history: History, hardware: Hardware) -> float:
    """Return how long the search trials took: baselines alone, the others side by side."""
    at_once = hardware.num_devices // history.space.num_ranks
    alone_s = sum(lengths_s(history.of(Purpose.BASELINE)))
    return alone_s + (sum(lengths_s(history.search)) - alone_s) / at_once


def check_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of the numerics check of `plan`, in seconds.

    A check starts a process, builds the plan and its eager twin, and compares a few steps, which a
    large batch makes long for the twin. It has neither warm-up nor windows. Plans are checked
    after they were measured, so a compiled one is in the compiler's cache.
    """
    built_s = _start_s(history) + 2 * history.start_ups.build_s()
    steps_s = _warm_first_step_s(plan, history, hardware) + _compared_s(plan, history)
    usual_s = built_s + steps_s
    alike = [
        trial.total_s * max(1.0, int(plan["batch_size"]) / int(trial.plan["batch_size"]))
        for trial in history.of(Purpose.NUMERICS)
        if trial.result.outcome is Outcome.OK
        and trial.total_s is not None
        and compiler_setup(trial.plan) == compiler_setup(plan)
    ]
    return _MARGIN * min(usual_s, max(alike, default=usual_s))


def _compared_s(plan: Plan, history: History) -> float:
    """Return the length of a check's steps; the twin is taken to be as fast as the baseline."""
    if history.baseline is None:
        return 0.0
    twin = history.baseline.throughput
    own = history.measured[plan].throughput if plan in history.measured else twin
    samples = int(plan["batch_size"]) * int(plan.get(FOLLOWS, 1)) * history.space.num_ranks
    # The twin takes them twice, and both take one that is not compared.
    return (COMPARED_STEPS + 1) * samples * (2 / twin + 1 / own)


def confirmation_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of measuring `plan` once more after its trial, in seconds."""
    first_step_s = expected_first_step_s(plan, history, hardware)
    again_s = min(first_step_s, _warm_first_step_s(plan, history, hardware))
    return _MARGIN * (expected_s(plan, history, hardware) - first_step_s + again_s)


def remeasure_and_check_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the seconds that measuring `plan` once more and checking it takes.

    The baseline's own process is compared with then, as far as time is too short for another one.
    """
    return confirmation_s(plan, history, hardware) + check_s(plan, history, hardware)


def expected_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected first step of `plan` in seconds; compilation lives there."""
    if not is_compiled(plan):
        return statistics.median(_first_steps(history, None) or [0.0])
    cached_s = _cached_first_step_s(plan, history)
    return _uncached_first_step_s(plan, history, hardware) if cached_s is None else cached_s


def _cached_first_step_s(plan: Plan, history: History) -> float | None:
    """Return the first step of a program that was compiled before, None for any other.

    A second process finds most kernels in the compiler's cache; later ones show how many.
    """
    seen_s = history.start_ups.first_steps_s(plan)
    if len(seen_s) == 1:
        return (1.0 - _CACHED) * seen_s[0]
    return seen_s[-1] if seen_s else None


def _warm_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the first step of a plan whose program a process has compiled by then."""
    if not is_compiled(plan):
        return expected_first_step_s(plan, history, hardware)
    cached_s = _cached_first_step_s(plan, history)
    cold_s = _uncached_first_step_s(plan, history, hardware)
    return (1.0 - _CACHED) * cold_s if cached_s is None else cached_s


def _uncached_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    compiler = compiler_setup(plan)
    known = _first_steps(history, compiler)
    if known:
        return max(known)
    return max(_guess_first_step_s(plan, history, hardware), *_at_least(history, compiler), 0.0)


def num_given_up(plan: Plan, history: History) -> int:
    """Return how often plans of this mode and scope were given up while they compiled."""
    compiler = compiler_setup(plan)
    return sum(trial.was_too_slow for trial in _interrupted(history, compiler))


def compiler_is_known(plan: Plan, history: History) -> bool:
    """Whether plans of this mode and scope were compiled before, on one device or several."""
    return bool(_first_steps(history, compiler_setup(plan)))


def _guess_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    usual_s = usual_first_step_s(plan, hardware.device_kind)
    default = Plan.of({**plan.values, "compile_mode": "default"})
    setup = compiler_setup(default)
    known = _first_steps(history, setup) or _at_least(history, setup)
    # Modes take about the same multiple of `default`, whatever the model.
    by_ops = _scale(default, history, hardware)
    scale = max(known) / usual_first_step_s(default, hardware.device_kind) if known else by_ops
    # What was seen may have come from the compiler's cache.
    return usual_s * max(scale, _LEAST_SCALE * by_ops)


def _scale(default: Plan, history: History, hardware: Hardware) -> float:
    """Return how much longer than usual a plan of `default` should compile, by its operations.

    Blocks of one class are compiled once, and accumulation repeats what is compiled.
    """
    ops = history.diagnosis.ops_per_step if history.diagnosis else None
    if ops is None or hardware.device_kind != "cuda":
        return 1.0
    ops /= int(history.reference.get(FOLLOWS, 1))
    if compiles_blocks(default):
        ops /= max(1, history.space.facts.num_blocks)
    expected_s = _ANY_FIRST_STEP_S + _FIRST_STEP_OF_OP_S * ops
    return expected_s / usual_first_step_s(default, hardware.device_kind)


def _first_steps(history: History, compiler: CompilerSetup | None) -> list[float]:
    own = [
        measurement.first_step_s
        for plan, measurement in history.measured.items()
        if compiler_setup(plan) == compiler
    ]
    return own or (_first_steps(history.scouts, compiler) if history.scouts else [])


def _at_least(history: History, compiler: CompilerSetup | None) -> list[float]:
    """Return for how long plans compiled that were ended meanwhile; it would have taken longer."""
    return lengths_s(_interrupted(history, compiler))


def _interrupted(history: History, compiler: CompilerSetup | None) -> list[Done]:
    """Return the trials of plans of this mode and scope that were ended while they compiled."""
    return [
        trial
        for trial in history.search
        if compiler is not None
        and compiler_setup(trial.plan) == compiler
        and trial.result.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)
        and trial.result.phase is Phase.FIRST_STEP
    ]


def _steady_s(history: History) -> float:
    """Everything but the first step: start, build, warm-up, windows, reaping.

    The baseline's say little where it is slow. Those of scouts lack what the ranks take to meet.
    """
    own = _steady(history)
    if own or history.baseline is None or history.scouts is None:
        return statistics.median(own or _steady(history, Purpose.BASELINE) or [_UNKNOWN_S])
    theirs = _steady(history.scouts)
    baselines = [_steady(h, Purpose.BASELINE) for h in (history, history.scouts)]
    if not theirs or not all(baselines):
        return statistics.median(baselines[0])
    among_ranks_s = max(0.0, baselines[0][-1] - baselines[1][-1])
    return statistics.median(theirs) + among_ranks_s


def _start_s(history: History) -> float:
    """Return what a trial takes beside its phases: starting, loading a first batch, ending."""
    found = [
        trial.undiagnosed_s - m.build_s - m.first_step_s - m.warm_up_s - m.measure_s
        for trial in history.search
        if (m := trial.result.measurement)
    ]
    return max(0.0, statistics.median(found)) if found else _UNKNOWN_S


def _steady(history: History, *purposes: Purpose) -> list[float]:
    """The same of each trial with one of the purposes; else of the search beside baselines."""
    wanted = frozenset(purposes) or SEARCH - {Purpose.BASELINE}
    return [
        trial.undiagnosed_s - trial.result.measurement.first_step_s
        for trial in history.of(*wanted)
        if trial.result.measurement and not trial.result.measurement.raced
    ]
