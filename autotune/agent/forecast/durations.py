"""How long a trial will take, learnt from those that ran."""

import statistics

from autotune.agent.history import SEARCH, Done, History
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.search_space.space import FOLLOWS
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.result import Outcome, Phase, Purpose

# First steps in seconds before anything is known, from runs of middle-sized models.
_FIRST_STEP_S = {
    "cpu": {"default": 30.0},
    "cuda": {
        "default": 15.0,
        "reduce-overhead": 20.0,
        "max-autotune-no-cudagraphs": 150.0,
        "max-autotune": 180.0,
    },
}
# Of `default`, where it is known how many operations a step on a GPU launches.
_ANY_FIRST_STEP_S, _FIRST_STEP_OF_OP_S = 4.0, 0.0175
_LEAST_SCALE = 0.5
# Of the whole model's first step, where only the repeated block is compiled.
_BLOCK_SHARE = {"cpu": 0.65, "cuda": 0.45}
_UNKNOWN_S = 10.0
_CACHED = 0.5  # part of the first step that the compiler's cache saves at least
_CHECK_COST = 1.25  # of a trial: it runs the eager twin beside the plan


def expected_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of a trial of `plan`, in seconds."""
    own = [t for t in history.done if t.plan == plan and t.result.measurement]
    if own:
        return _again_s(own[-1], history, hardware)
    # A trial that was stopped lasted at least as long as it did.
    stopped = max((t.total_s for t in history.search if t.plan == plan), default=0.0)
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
    alone_s = sum(trial.total_s for trial in history.of(Purpose.BASELINE))
    return alone_s + (sum(trial.total_s for trial in history.search) - alone_s) / at_once


def check_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of the numerics check of `plan`, in seconds.

    A trial's warm-up and windows are not part of it, which an earlier check of a plan that
    compiles alike tells. Its steps are, which a large batch makes long for the eager twin.
    """
    usual_s = max(_CHECK_COST * expected_s(plan, history, hardware), _compared_s(plan, history))
    alike = [
        trial.total_s * max(1.0, int(plan["batch_size"]) / int(trial.plan["batch_size"]))
        for trial in history.of(Purpose.NUMERICS)
        if trial.result.outcome is Outcome.OK and _compiler(trial.plan) == _compiler(plan)
    ]
    return min(usual_s, _CHECK_COST * max(alike, default=usual_s))


def _compared_s(plan: Plan, history: History) -> float:
    """Return the length of a check's steps; the twin is taken to be as fast as the baseline."""
    if history.baseline is None:
        return 0.0
    twin = history.baseline.throughput
    own = history.measured[plan].throughput if plan in history.measured else twin
    samples = int(plan["batch_size"]) * int(plan.get(FOLLOWS, 1)) * history.space.num_ranks
    # The twin takes them twice, and both take one that is not compared.
    return (COMPARED_STEPS + 1) * samples * (2 / twin + 1 / own)


def least_ending_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the seconds that confirming and checking `plan` takes at the least."""
    own_plan = history.reference
    once_each_s = sum(expected_s(p, history, hardware) for p in (own_plan, plan))
    return once_each_s + check_s(plan, history, hardware)


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


def _uncached_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    compiler = _compiler(plan)
    known = _first_steps(history, compiler)
    if known:
        return max(known)
    return max(_guess_first_step_s(plan, history, hardware), *_at_least(history, compiler), 0.0)


def num_given_up(plan: Plan, history: History) -> int:
    """Return how often plans of this mode and scope were given up while they compiled."""
    compiler = _compiler(plan)
    return sum(trial.was_too_slow for trial in _interrupted(history, compiler))


def compiler_is_known(plan: Plan, history: History) -> bool:
    """Whether plans of this mode and scope were compiled before, on one device or several."""
    return bool(_first_steps(history, _compiler(plan)))


def _guess_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    prior = _FIRST_STEP_S[hardware.device_kind]
    is_block = plan.get("compile_scope", "model") == "block"
    scope_share = _BLOCK_SHARE[hardware.device_kind] if is_block else 1.0
    default = "default", str(plan.get("compile_scope", "model"))
    known = _first_steps(history, default) or _at_least(history, default)
    # Modes take about the same multiple of `default`, whatever the model.
    by_ops = _scale(history, hardware)
    scale = max(known) / (prior["default"] * scope_share) if known else by_ops
    # What was seen may have come from the compiler's cache.
    return prior[str(plan["compile_mode"])] * scope_share * max(scale, _LEAST_SCALE * by_ops)


def _scale(history: History, hardware: Hardware) -> float:
    """Return how much longer than usual the model should take to compile, by its operations."""
    ops = history.diagnosis.ops_per_step if history.diagnosis else None
    if ops is None or hardware.device_kind != "cuda":
        return 1.0
    expected_s = _ANY_FIRST_STEP_S + _FIRST_STEP_OF_OP_S * ops
    return expected_s / _FIRST_STEP_S["cuda"]["default"]


def _first_steps(history: History, compiler: tuple[str, str] | None) -> list[float]:
    own = [
        measurement.first_step_s
        for plan, measurement in history.measured.items()
        if _compiler(plan) == compiler
    ]
    return own or (_first_steps(history.scouts, compiler) if history.scouts else [])


def _at_least(history: History, compiler: tuple[str, str] | None) -> list[float]:
    """Return for how long plans compiled that were ended meanwhile; it would have taken longer."""
    return [trial.total_s for trial in _interrupted(history, compiler)]


def _interrupted(history: History, compiler: tuple[str, str] | None) -> list[Done]:
    """Return the trials of plans of this mode and scope that were ended while they compiled."""
    return [
        trial
        for trial in history.search
        if compiler is not None
        and _compiler(trial.plan) == compiler
        and trial.result.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)
        and trial.result.phase is Phase.FIRST_STEP
    ]


def _compiler(plan: Plan) -> tuple[str, str] | None:
    if not is_compiled(plan):
        return None
    return str(plan["compile_mode"]), str(plan.get("compile_scope", "model"))


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


def _steady(history: History, *purposes: Purpose) -> list[float]:
    """The same of each trial with one of the purposes; else of the search beside baselines."""
    wanted = frozenset(purposes) or SEARCH - {Purpose.BASELINE}
    return [
        trial.undiagnosed_s - trial.result.measurement.first_step_s
        for trial in history.of(*wanted)
        if trial.result.measurement and not trial.result.measurement.raced
    ]
