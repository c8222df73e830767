"""The wall clock of trials, estimated from the trials that ran."""

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
from autotune.search_space.knobs.layout import CUDNN_BENCHMARK, MEMORY_FORMAT
from autotune.search_space.plan import Plan
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.result import Outcome, Phase, Purpose

# First step with `compile_mode=default` on a GPU in seconds: a constant, a part for each operation
# that an eager step launches, and a part for each of them that is not in a further block of the
# same kind, as its kernels are compiled once. A ViT and LMs gave the first two, and a UNet of ten
# kinds of blocks, with 935 operations in 45 s, the third (LOG, 2026-11-23).
_FIRST_STEP_BASE_S, _FIRST_STEP_PER_OP_S, _FIRST_STEP_PER_NEW_OP_S = 4.0, 0.0175, 0.026
# The same where blocks are compiled: further seconds for each kind after the first. The eight
# kinds of a ResNet-50 were not through after 37 s.
_FIRST_STEP_PER_KIND_S = 2.5
# Factor of the guess of a compilation that was not seen yet: one of five takes longer than that. A
# T5 took 1.3 times as long as guessed, a UNet 1.1 times.
_MARGIN_OF_GUESS = 1.2
# Seconds by which a first step is longer in which cuDNN times its algorithms at new shapes: a
# ResNet-50 and a UNet on an H200 took 16 to 18 s longer.
_CUDNN_TIMING_S = 16.0
# Least length of a compilation, as a part of the guess from the number of operations: a
# measured one may have found kernels in the compiler's cache.
_LEAST_SCALE = 0.5
# Eager fp32 at a large batch on a CPU, beside its speed at the baseline's: a language model took
# 3.4 times as long for each sample at four times the batch, and 5 times at 16 times.
_SLOWER_ON_CPU = 3.0
_FIRST_TRIAL_S = 10.0  # seconds of a trial without its first step, before any trial ended
# Part of a first step that the caches of the compiler and of cuDNN save in later processes: an LM
# of 269 M parameters took 14.5 s, then 4.6 and 4.1 s; cuDNN's timings 17 to 20 s, then 5 to 7 s.
_CACHE_SAVES = 0.68
# Factor of the expected length of a confirmation or check: one of five takes longer than expected.
_MARGIN = 1.1


def expected_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of a trial of `plan`, in seconds."""
    own = [t for t in history.done if t.plan == plan and t.result.measurement]
    if own:
        return _repeated_s(own[-1], history, hardware)
    # A trial that was stopped lasted at least as long as it did.
    stopped = max(lengths_s(t for t in history.search if t.plan == plan), default=0.0)
    return max(
        stopped,
        _expected_without_first_step_s(history) + expected_first_step_s(plan, history, hardware),
    )


def _repeated_s(last: Done, history: History, hardware: Hardware) -> float:
    measurement = last.result.measurement
    if measurement is None or not _fills_a_cache(last.plan):
        return last.undiagnosed_s
    again_s = expected_first_step_s(last.plan, history, hardware)
    return last.undiagnosed_s - measurement.first_step_s + again_s


def uncached_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of a trial that finds the compiler's cache empty, in seconds.

    Each node of a cluster has a cache of its own, so a plan may have to compile again.
    """
    usual_s = expected_s(plan, history, hardware)
    if not is_compiled(plan):
        return usual_s
    spared_s = _uncached_first_step_s(plan, history, hardware)
    spared_s -= expected_first_step_s(plan, history, hardware)
    return usual_s + max(0.0, spared_s)


def wall_clock_s(history: History, hardware: Hardware) -> float:
    """Return the seconds that the search trials took.

    Baselines run alone, other trials side by side on all devices.
    """
    at_once = hardware.num_devices // history.space.num_ranks
    alone_s = sum(lengths_s(history.of(Purpose.BASELINE)))
    return alone_s + (sum(lengths_s(history.search)) - alone_s) / at_once


def check_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of the numerics check of `plan`, in seconds.

    A check starts a process, builds the plan and its eager twin, and compares a few steps, which a
    large batch makes long for the twin. It has neither warm-up nor windows. A compiled plan that
    was measured is in the compiler's cache.
    """
    built_s = _overhead_s(history) + 2 * history.start_ups.build_s()
    first_step_of = _warm_first_step_s if plan in history.measured else expected_first_step_s
    usual_s = built_s + first_step_of(plan, history, hardware) + _check_steps_s(plan, history)
    alike = [
        trial.total_s * max(1.0, int(plan["batch_size"]) / int(trial.plan["batch_size"]))
        for trial in history.of(Purpose.NUMERICS)
        if trial.result.outcome is Outcome.OK
        and trial.total_s is not None
        and compiler_setup(trial.plan) == compiler_setup(plan)
    ]
    return _MARGIN * min(usual_s, max(alike, default=usual_s))


def _check_steps_s(plan: Plan, history: History) -> float:
    """Return the seconds of a check's steps, with an eager twin as fast as the baseline."""
    if history.baseline is None:
        return 0.0
    twin = history.baseline.throughput
    is_larger = int(plan["batch_size"]) > int(history.baseline.plan["batch_size"])
    if is_larger and history.space.site.hardware.device_kind == "cpu":
        twin /= _SLOWER_ON_CPU
    own = history.measured[plan].throughput if plan in history.measured else twin
    samples = int(plan["batch_size"]) * int(plan.get(FOLLOWS, 1)) * history.space.num_ranks
    # The twin takes each step twice, and both take one more step that is not compared.
    return (COMPARED_STEPS + 1) * samples * (2 / twin + 1 / own)


def confirmation_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected wall clock of measuring `plan` once more after its trial, in seconds."""
    first_step_s = expected_first_step_s(plan, history, hardware)
    again_s = min(first_step_s, _warm_first_step_s(plan, history, hardware))
    return _MARGIN * (expected_s(plan, history, hardware) - first_step_s + again_s)


def expected_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected first step of `plan` in seconds, its compilation included."""
    cached_s = _cached_first_step_s(plan, history)
    if not is_compiled(plan):
        return _eager_first_step_s(plan, history) if cached_s is None else cached_s
    return _uncached_first_step_s(plan, history, hardware) if cached_s is None else cached_s


def _eager_first_step_s(plan: Plan, history: History) -> float:
    """Return the expected first step of a plan that compiles nothing, in seconds."""
    of_eager = [
        (other.get(CUDNN_BENCHMARK.name, False), measurement.first_step_s)
        for other, measurement in history.measured.items()
        if not is_compiled(other)
    ]
    is_timed = plan.get(CUDNN_BENCHMARK.name, False)
    alike = [seconds for other, seconds in of_eager if other == is_timed]
    if alike or not of_eager:
        return statistics.median(alike or _first_steps_s(history, None) or [0.0])
    usual_s = statistics.median(seconds for _, seconds in of_eager)
    return usual_s + _CUDNN_TIMING_S if is_timed else usual_s


def _fills_a_cache(plan: Plan) -> bool:
    """Whether the first process of the plan leaves kernels that make later first steps short."""
    return is_compiled(plan) or bool(plan.get(CUDNN_BENCHMARK.name, False))


def _cached_first_step_s(plan: Plan, history: History) -> float | None:
    """Return the expected first step of a program that this run compiled before, None for others.

    After one process a usual part of its first step is taken off, later the last one counts.
    """
    if not _fills_a_cache(plan):
        return None
    seen_s = history.start_ups.first_steps_s(plan)
    if len(seen_s) == 1:
        return (1.0 - _CACHE_SAVES) * seen_s[0]
    return seen_s[-1] if seen_s else None


def _warm_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected first step of a plan once a process has compiled its program."""
    if not is_compiled(plan):
        return expected_first_step_s(plan, history, hardware)
    cached_s = _cached_first_step_s(plan, history)
    cold_s = _uncached_first_step_s(plan, history, hardware)
    return (1.0 - _CACHE_SAVES) * cold_s if cached_s is None else cached_s


def _uncached_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected first step of a plan with an empty compiler cache."""
    compiler = compiler_setup(plan)
    is_timed_anew = plan.get(CUDNN_BENCHMARK.name, False) and not _is_timed(plan, history)
    timing_s = _CUDNN_TIMING_S if is_timed_anew else 0.0
    known = _first_steps_s(history, compiler)
    if known:
        return max(known) + timing_s
    guess_s = _MARGIN_OF_GUESS * _guess_first_step_s(plan, history, hardware) + timing_s
    return max(guess_s, *_interrupted_s(history, compiler), 0.0)


def _is_timed(plan: Plan, history: History) -> bool:
    """Whether cuDNN timed its algorithms at the plan's batch and precision in another trial."""
    names = (CUDNN_BENCHMARK.name, "batch_size", "precision", MEMORY_FORMAT.name)
    return any(
        all(other.get(n, "") == plan.get(n, "") for n in names) for other in history.measured
    )


def num_given_up(plan: Plan, history: History) -> int:
    """Return how many plans of this compile mode and scope took too long to compile."""
    compiler = compiler_setup(plan)
    return sum(trial.was_too_slow for trial in _interrupted(history, compiler))


def compiler_is_known(plan: Plan, history: History) -> bool:
    """Whether a plan of this compile mode and scope was measured, on one device or several."""
    return bool(_first_steps_s(history, compiler_setup(plan)))


def _guess_first_step_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the first step of a compile mode and scope that no measured plan had."""
    usual_s = usual_first_step_s(plan, hardware.device_kind)
    default = Plan.of({**plan.values, "compile_mode": "default"})
    setup = compiler_setup(default)
    known = _first_steps_s(history, setup) or _interrupted_s(history, setup)
    # The ratio of a mode's compile time to that of `default` hardly depends on the model.
    by_ops = _scale(default, history, hardware)
    scale = max(known) / usual_first_step_s(default, hardware.device_kind) if known else by_ops
    # The measured compilations may have found kernels in the compiler's cache.
    return usual_s * max(scale, _LEAST_SCALE * by_ops)


def _scale(default: Plan, history: History, hardware: Hardware) -> float:
    """Return the expected ratio of the plan's compile time to the usual one of `default`.

    It follows from the number of operations in the step; blocks of one kind and micro-batches are
    compiled once.
    """
    ops = history.diagnosis.ops_per_step if history.diagnosis else None
    if ops is None or hardware.device_kind != "cuda":
        return 1.0
    ops /= int(history.reference.get(FOLLOWS, 1))
    kinds = history.space.facts.num_block_kinds
    new_ops = ops * kinds / max(kinds, history.space.facts.num_blocks)
    expected_s = _FIRST_STEP_BASE_S + _FIRST_STEP_PER_NEW_OP_S * new_ops
    if compiles_blocks(default):
        expected_s += _FIRST_STEP_PER_OP_S * new_ops + _FIRST_STEP_PER_KIND_S * (kinds - 1)
    else:
        expected_s += _FIRST_STEP_PER_OP_S * ops
    if history.space.facts.uneven_batches:
        expected_s *= 2  # the second shape is compiled again, for sizes that vary
    return expected_s / usual_first_step_s(default, hardware.device_kind)


def _first_steps_s(history: History, compiler: CompilerSetup | None) -> list[float]:
    """Return the first steps in seconds of measured plans with this compile mode and scope.

    If there is none, those of one-device trials.
    """
    own = [
        measurement.first_step_s
        for plan, measurement in history.measured.items()
        if compiler_setup(plan) == compiler
    ]
    return own or (_first_steps_s(history.scouts, compiler) if history.scouts else [])


def _interrupted_s(history: History, compiler: CompilerSetup | None) -> list[float]:
    """Return the seconds of trials that were ended while they compiled, as lower bounds."""
    return lengths_s(_interrupted(history, compiler))


def _interrupted(history: History, compiler: CompilerSetup | None) -> list[Done]:
    """Return the trials with this compile mode and scope that were ended while they compiled."""
    return [
        trial
        for trial in history.search
        if compiler is not None
        and compiler_setup(trial.plan) == compiler
        and trial.result.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)
        and trial.result.phase is Phase.FIRST_STEP
    ]


def _expected_without_first_step_s(history: History) -> float:
    """Return the expected seconds of a trial without its first step, the median of earlier ones.

    Baselines, which may be slow, count only if nothing else was measured. To one-device trials the
    time is added by which the baseline takes longer on several ranks.
    """
    own = _without_first_step_s(history)
    if own or history.baseline is None or history.scouts is None:
        return statistics.median(
            own or _without_first_step_s(history, Purpose.BASELINE) or [_FIRST_TRIAL_S]
        )
    theirs = _without_first_step_s(history.scouts)
    baselines = [_without_first_step_s(h, Purpose.BASELINE) for h in (history, history.scouts)]
    if not theirs or not all(baselines):
        return statistics.median(baselines[0])
    among_ranks_s = max(0.0, baselines[0][-1] - baselines[1][-1])
    return statistics.median(theirs) + among_ranks_s


def _overhead_s(history: History) -> float:
    """Return the median seconds of starting a trial, loading its first batch and ending it."""
    found = [
        trial.undiagnosed_s - m.build_s - m.first_step_s - m.warm_up_s - m.measure_s
        for trial in history.search
        if (m := trial.result.measurement)
    ]
    return max(0.0, statistics.median(found)) if found else _FIRST_TRIAL_S


def _without_first_step_s(history: History, *purposes: Purpose) -> list[float]:
    """Return the seconds of each trial without its first step.

    The trials are those with one of the purposes; if none is given, all search trials but
    baselines.
    """
    wanted = frozenset(purposes) or SEARCH - {Purpose.BASELINE}
    return [
        trial.undiagnosed_s - trial.result.measurement.first_step_s
        for trial in history.of(*wanted)
        if trial.result.measurement and not trial.result.measurement.raced
    ]
