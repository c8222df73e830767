"""What each value of each knob is expected to be worth, before and after evidence.

The figures order proposals, they are never results. They come from measurements of a GPT, a
ResNet and an MLP on one Hopper GPU, and from framework documentation where nothing was measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import Space
from autotune.trials.diagnosis import Bound
from autotune.trials.result import Measurement

DATA_WAIT = 0.02  # share of the time above which the loader is worth a trial
LOADER_KNOBS = ("workers", "prefetch")
_LAUNCH_BOUND_STEP_MS = 15.0
_WORKER_PRICE = 0.99  # each worker takes cores and memory from the step

_SPEED: dict[str, dict[str, dict[Value, float]]] = {
    "cuda": {
        "precision": {"tf32": 2.5, "bf16": 4.0, "fp16": 3.9},
        "compile_mode": {
            "default": 1.2,
            "reduce-overhead": 1.25,
            "max-autotune-no-cudagraphs": 1.205,
            "max-autotune": 1.26,
        },
        "optimizer_impl": {"foreach": 1.01, "fused": 1.1},
        "memory_format": {"channels_last": 1.3},
        "cudnn_benchmark": {True: 1.06},
        "pin_memory": {True: 1.03},
    },
    "cpu": {
        "precision": {"bf16": 1.3},
        "compile_mode": {"default": 1.3},
        "optimizer_impl": {"foreach": 1.01, "fused": 1.1},
        "memory_format": {"channels_last": 1.2},
    },
}
_LAUNCH_BOUND_SPEED: dict[str, dict[Value, float]] = {
    "compile_mode": {"reduce-overhead": 2.0, "max-autotune": 2.01},
    "optimizer_impl": {"fused": 1.5},
}
# On four GPUs that NVLink connects; slower links gain more.
_COMMUNICATION_SPEED: dict[str, dict[Value, float]] = {
    "bucket_mb": {1: 0.8, 5: 0.88, 10: 0.95, 50: 1.01, 100: 1.015, 200: 1.01},
    "gradient_as_bucket_view": {True: 1.02},
    "static_graph": {True: 1.005},
    "comm_hook": {"bf16": 1.03, "fp16": 1.03},
}
_HALVED_TRAFFIC = 0.5  # of the time that only communication takes, saved by a hook
# What each rank holds less of has to be sent more often. A GPT of 350 M parameters ran at 0.6 to
# 0.9 of ddp's speed, one of 1.3 B up to 1.1 times as fast: its optimizer step is shared out.
_SHARDING_SPEED: dict[Value, float] = {
    "ddp": 1.0,
    "zero1": 0.89,
    "fsdp_zero2": 0.75,
    "hsdp": 0.65,
    "fsdp_zero3": 0.6,
}
_SHARDING_SPEED_LARGE: dict[Value, float] = {
    "ddp": 1.0,
    "zero1": 1.02,
    "fsdp_zero2": 1.1,
    "hsdp": 1.08,
    "fsdp_zero3": 1.12,
}
_LARGE_MODEL = 700_000_000  # parameters; between the two that were measured
_FEWER_THREADS = 1.03
_FEWER_THREADS_LAUNCH_BOUND = 1.2  # 31 k to 62 k samples/s seen with CUDA graphs on a small MLP
_USER_KNOB = 1.05  # the user wrote it down, so it may well matter
_PREFETCH = 1.02

_FASTER_KERNELS = ("precision", "memory_format", "cudnn_benchmark")
_LAUNCHES = ("compile_mode", "optimizer_impl", "batch_size")
_ACTS_ON: dict[Bound, tuple[str, ...]] = {
    Bound.DATA: LOADER_KNOBS,
    Bound.LAUNCHES: _LAUNCHES,
    Bound.ARITHMETIC: ("precision",),
    Bound.MEMORY_BANDWIDTH: ("compile_mode", "optimizer_impl", "memory_format", "precision"),
    Bound.COMMUNICATION: ("bucket_mb", "comm_hook"),
    Bound.CAPACITY: (),
}

_WHY = {
    "precision": "matrix products in fewer bits",
    "compile_mode": "fused kernels and fewer launches",
    "optimizer_impl": "fewer kernels in the optimizer step",
    "memory_format": "the layout that convolutions run fastest in",
    "cudnn_benchmark": "convolution algorithms chosen by timing them",
    "pin_memory": "copies to the device that overlap with the step",
    "threads": "fewer threads wait less for each other",
    "bucket_mb": "fewer and larger messages",
    "gradient_as_bucket_view": "gradients are not copied into buckets",
    "static_graph": "DDP need not look for unused parameters",
    "comm_hook": "gradients sent in half the bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One knob set to another value on top of the best plan.

    Attributes:
        gain: expected speed-up as a factor; 1 for none.
        why: in words.
    """

    knob: str
    value: Value
    gain: float
    why: str


def levers(history: History, hardware: Hardware) -> list[Lever]:
    """Return the levers on the best plan that evidence does not rule out, largest gain first."""
    found = [
        lever
        for lever in _expected(history, hardware)
        if not history.loses(lever.knob, history.best.plan[lever.knob], lever.value)
    ]
    return sorted(found, key=lambda lever: -lever.gain)


def waits_for_data(trial: Done, at_least: float = DATA_WAIT) -> bool:
    """Whether the trial's loop waited for its loader for more than this share of the time."""
    return _wait(trial.result.measurement) > at_least


def _expected(history: History, hardware: Hardware) -> Iterator[Lever]:
    best = history.best
    wait = _wait(best.result.measurement)
    for domain in history.space.domains:
        name = domain.knob.name
        if name not in best.plan or not domain.varies:
            continue
        out_of_reach = _out_of_reach(name, wait, history)
        for value in domain.values:
            gain = _gain(name, value, best.plan, wait, history, hardware)
            if value != best.plan[name] and gain > 1.0:
                gain = 1.0 / (out_of_reach + (1.0 - out_of_reach) / gain)
                yield Lever(knob=name, value=value, gain=gain, why=_why(name, wait, history))


def _out_of_reach(name: str, wait: float, history: History) -> float:
    """Share of the best plan's step that a knob cannot shorten (Amdahl's law).

    Computing faster shortens no waiting for data, and faster kernels no time in which the device
    waits for the next one. That share was seen in the baseline, and holds until the launches
    change.
    """
    if name in LOADER_KNOBS:
        return 0.0
    idle = history.diagnosis.shares.idle if history.diagnosis else None
    if name not in _FASTER_KERNELS or idle is None or history.baseline is None:
        return wait
    changed = history.best.plan.diff(history.baseline.plan)
    return wait if any(knob in changed for knob in _LAUNCHES) else min(1.0, wait + idle)


def _gain(
    name: str, value: Value, plan: Plan, wait: float, history: History, hardware: Hardware
) -> float:
    if name in dict(history.space.facts.user_knobs):
        return _USER_KNOB
    if name in LOADER_KNOBS:
        return _loader_gain(name, int(value), int(plan[name]), wait)
    if name == "threads":
        return _fewer_threads(int(value), int(plan[name]), history, hardware)
    speeds = speed_of(name, history, hardware)
    return speeds.get(value, 1.0) / speeds.get(plan[name], 1.0)


def _fewer_threads(value: int, current: int, history: History, hardware: Hardware) -> float:
    if value >= current:
        return 1.0
    launches = hardware.device_kind == "cuda" and _is_launch_bound(history)
    return _FEWER_THREADS_LAUNCH_BOUND if launches else _FEWER_THREADS


def _is_launch_bound(history: History) -> bool:
    """As diagnosed; a plan that has become much faster since may have become so, too."""
    if history.diagnosis is not None and history.diagnosis.bound is not None:
        if history.diagnosis.bound is Bound.LAUNCHES or history.best is history.baseline:
            return history.diagnosis.bound is Bound.LAUNCHES
    measurement = history.best.result.measurement
    return measurement is not None and measurement.step_ms < _LAUNCH_BOUND_STEP_MS


def speed_of(name: str, history: History, hardware: Hardware) -> dict[Value, float]:
    """Return the expected speed of each value of a knob, relative to its baseline value."""
    if name in _COMMUNICATION_SPEED:
        return _communication_speed(name, history)
    speeds = _SPEED[hardware.device_kind].get(name, {})
    if hardware.device_kind == "cuda" and _is_launch_bound(history):
        return {**speeds, **_LAUNCH_BOUND_SPEED.get(name, {})}
    return speeds


def _communication_speed(name: str, history: History) -> dict[Value, float]:
    """Where the time that only communication takes was traced, hooks promise a part of that."""
    speeds = _COMMUNICATION_SPEED[name]
    measurement = history.best.result.measurement
    exposed = measurement.exposed_comm_share if measurement else None
    if name != "comm_hook" or exposed is None:
        return speeds
    return dict.fromkeys(speeds, 1.0 / (1.0 - _HALVED_TRAFFIC * exposed))


def sharding_speed(space: Space) -> dict[Value, float]:
    """Return the expected speed of each sharding that the space offers, relative to ddp's."""
    domain = space.by_name.get("sharding")
    if domain is None:
        return {}
    large = space.facts.num_parameters >= _LARGE_MODEL
    speeds = _SHARDING_SPEED_LARGE if large else _SHARDING_SPEED
    return {value: speeds[value] for value in domain.values}


def _loader_gain(name: str, value: int, current: int, wait: float) -> float:
    if wait <= DATA_WAIT or value <= current:
        return 1.0
    if name == "prefetch":
        return _PREFETCH
    # The wait shrinks with the processes that load: `workers`, or the loop itself without any.
    faster = 1.0 / (1.0 - wait + wait * max(current, 1) / (value + (current == 0)))
    return faster * _WORKER_PRICE ** (value - current)


def _why(name: str, wait: float, history: History) -> str:
    if name in LOADER_KNOBS:
        return f"the loop waits {wait:.0%} of the time for data"
    why, found = _WHY.get(name, "a choice that the workload offers"), history.diagnosis
    if found is None or found.bound is None or name not in _ACTS_ON[found.bound]:
        return why
    return f"{why}; the baseline is bound by {found.bound.words} ({found.evidence[0]})"


def _wait(measurement: Measurement | None) -> float:
    return measurement.data_wait_share if measurement else 0.0
