"""What each value of each knob is expected to be worth, before and after evidence.

The figures order proposals, they are never results. They come from measurements of a GPT, a
ResNet and an MLP on one Hopper GPU, and from framework documentation where nothing was measured.
"""

import math
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Value
from autotune.search_space.space import Space
from autotune.trials.diagnosis import Bound

DATA_WAIT = 0.02  # share of the time above which the loader is worth a trial
LOADER_KNOBS = ("workers", "prefetch")
_LAUNCH_BOUND_STEP_MS = 15.0
_WORKER_PRICE = 0.99  # each worker takes cores and memory from the step

_RECOMPUTING: dict[Value, float] = {
    "selective": 0.95,
    "every-4": 0.97,
    "every-2": 0.94,
    "full": 0.89,
}
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
        "compile_scope": {"block": 0.97},
        "activation_checkpointing": _RECOMPUTING,
    },
    "cpu": {
        "precision": {"bf16": 1.3},
        "compile_mode": {"default": 1.3},
        "optimizer_impl": {"foreach": 1.01, "fused": 1.1},
        "memory_format": {"channels_last": 1.2},
        "compile_scope": {"block": 0.97},
        "activation_checkpointing": _RECOMPUTING,
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
# How far a setting may be off what is expected of it, as a deviation of the log speed: something
# for every setting, more for one that the user wrote down, and a part of what is promised.
_DOUBT, _DOUBT_ABOUT_USER_KNOB, _DOUBT_ABOUT_GAIN = 0.03, 0.15, 0.5

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
    "compile_scope": "less to compile, nearly as fast",
    "batch_size": "the batch that fills the device",
    "activation_checkpointing": "room for the batch",
    "workers": "processes that load beside the step",
    "prefetch": "batches loaded ahead",
    "threads": "fewer threads wait less for each other",
    "bucket_mb": "fewer and larger messages",
    "gradient_as_bucket_view": "gradients are not copied into buckets",
    "static_graph": "DDP need not look for unused parameters",
    "comm_hook": "gradients sent in half the bytes",
}
# Why to go back to what the user has.
_WHY_BACK: dict[tuple[str, Value], str] = {
    ("precision", "fp32"): "casting may cost more than fewer bits save",
    ("compile_mode", "off"): "compiled code may be slower here",
    ("optimizer_impl", "default"): "its own implementation may be faster here",
    ("memory_format", "contiguous"): "some operator may lack the other layout",
    ("workers", 0): "workers may cost more than they load",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a value of a knob is expected to do to the speed at which a plan computes.

    Attributes:
        log: logarithm of the speed relative to the knob's baseline value.
        spread: standard deviation of that.
    """

    log: float
    spread: float


def expectation(name: str, value: Value, history: History, hardware: Hardware) -> Expectation:
    """Return what is expected of a value before anything shows it; the baseline's is (0, ...)."""
    log = math.log(_shortened(name, _speed(name, value, history, hardware), history))
    doubt = _DOUBT_ABOUT_USER_KNOB if _is_users(name, history) else _DOUBT
    return Expectation(log=log, spread=doubt + _DOUBT_ABOUT_GAIN * abs(log))


def waits_for_data(trial: Done) -> bool:
    """Whether the trial's loop waited for its loader for so long that loading is worth a trial."""
    return wait_share(trial) > DATA_WAIT


def wait_share(trial: Done) -> float:
    """Return the share of the time that the trial's loop waited for its loader."""
    measurement = trial.result.measurement
    return measurement.data_wait_share if measurement else 0.0


def why(name: str, value: Value, trial: Done, history: History) -> str:
    """Return in words why a knob's value may speed the trial's plan up."""
    if name in LOADER_KNOBS and waits_for_data(trial):
        return f"the loop waits {wait_share(trial):.0%} of the time for data"
    if (name, value) in _WHY_BACK:
        return _WHY_BACK[name, value]
    words, found = _WHY.get(name, "a choice that the workload offers"), history.diagnosis
    if found is None or found.bound is None or name not in _ACTS_ON[found.bound]:
        return words
    return f"{words}; the baseline is bound by {found.bound.words} ({found.evidence[0]})"


def _is_users(name: str, history: History) -> bool:
    return name in dict(history.space.facts.user_knobs)


def _shortened(name: str, speed: float, history: History) -> float:
    """Return the speed of the whole step when faster kernels shorten a part of it (Amdahl's law).

    They shorten no time in which the device waits for the next one. That share was seen in the
    baseline, and holds until the launches change.
    """
    idle = history.diagnosis.shares.idle if history.diagnosis else None
    if name not in _FASTER_KERNELS or speed <= 1.0 or idle is None or history.baseline is None:
        return speed
    changed = history.best.plan.diff(history.baseline.plan)
    if any(knob in changed for knob in _LAUNCHES):
        return speed
    return 1.0 / (idle + (1.0 - idle) / speed)


def _speed(name: str, value: Value, history: History, hardware: Hardware) -> float:
    domain = history.space.by_name.get(name)
    if domain is None or name == "batch_size":
        return 1.0
    if name == "workers":
        return _WORKER_PRICE ** int(value)
    if name == "threads":
        return _fewer_threads(int(value), int(domain.values[0]), history, hardware)
    speeds = sharding_speed(history.space) if name == "sharding" else None
    speeds = speeds or speed_of(name, history, hardware)
    return speeds.get(value, 1.0)


def _fewer_threads(value: int, baseline: int, history: History, hardware: Hardware) -> float:
    if value >= baseline:
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
