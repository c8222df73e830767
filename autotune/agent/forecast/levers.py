"""What each value of each knob is expected to be worth, before there is evidence.

The figures order proposals, they are never results. They come from measurements of a GPT, a
ResNet and an MLP on one Hopper GPU, and from framework documentation where nothing was measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.agent.focus import COMMUNICATION
from autotune.agent.history import Done, History
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Value
from autotune.search_space.space import FOLLOWS, Space
from autotune.trials.diagnosis import Bound

DATA_WAIT = 0.02  # share of the time above which the loader is worth a trial
LOADER_KNOBS = ("workers", "prefetch")


@dataclass(frozen=True, slots=True)
class Effect:
    """How many times as fast a value makes the two sides of a step, over its knob's baseline.

    Attributes:
        host: preparing and launching operations.
        device: running them.
    """

    host: float = 1.0
    device: float = 1.0


def _both(speed: float) -> Effect:
    return Effect(speed, speed)


_NONE = Effect()
_WORKER_PRICE = 0.99  # each worker takes cores and memory from the step
_FEWER_THREADS = {"cuda": Effect(host=1.05), "cpu": _both(1.03)}
_RECOMPUTING: dict[Value, Effect] = {
    "selective": _both(0.95),
    "every-4": _both(0.97),
    "every-2": _both(0.94),
    "full": _both(0.89),
}
# Of a padded product's speed, which the compiler's own timing has to show before it pads. What the
# timing counts and the program does not need, and its noise, leave products unpadded.
_LEFT_UNPADDED = 0.1
_EFFECTS: dict[str, dict[str, dict[Value, Effect]]] = {
    "cuda": {
        # Autocast launches a kernel for each cast.
        "precision": {
            "tf32": Effect(device=2.5),
            "bf16": Effect(host=0.8, device=4.0),
            "fp16": Effect(host=0.75, device=3.9),
        },
        "compile_mode": {
            "default": Effect(host=1.3, device=1.35),
            "reduce-overhead": Effect(host=10.0, device=1.36),
            "max-autotune-no-cudagraphs": Effect(host=1.3, device=1.36),
            "max-autotune": Effect(host=10.0, device=1.37),
        },
        "optimizer_impl": {"foreach": _both(1.01), "fused": Effect(host=1.2, device=1.05)},
        "cuda_graph": {"step": Effect(host=30.0)},
        "memory_format": {"channels_last": Effect(device=1.3)},
        "cudnn_benchmark": {True: Effect(device=1.06)},
        "pin_memory": {True: _both(1.01)},
        "compile_scope": {"block": Effect(device=0.98)},
        "activation_checkpointing": _RECOMPUTING,
    },
    "cpu": {
        "precision": {"bf16": Effect(device=1.3)},
        "compile_mode": {"default": _both(1.3)},
        "optimizer_impl": {"foreach": _both(1.01), "fused": _both(1.1)},
        "memory_format": {"channels_last": Effect(device=1.2)},
        "compile_scope": {"block": _both(0.97)},
        "activation_checkpointing": _RECOMPUTING,
    },
}
# On four GPUs that NVLink connects; slower links gain more.
_COMMUNICATION_SPEED: dict[str, dict[Value, float]] = {
    "bucket_mb": {1: 0.8, 5: 0.88, 10: 0.95, 50: 1.01, 100: 1.015, 200: 1.01},
    "gradient_as_bucket_view": {True: 1.01},
    "static_graph": {True: 1.005},
    "comm_hook": {"bf16": 1.01, "fp16": 1.01},
}
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
_LAUNCHES = ("compile_mode", "cuda_graph", "optimizer_impl", "batch_size")
_ACTS_ON: dict[Bound, tuple[str, ...]] = {
    Bound.DATA: LOADER_KNOBS,
    Bound.LAUNCHES: _LAUNCHES,
    Bound.ARITHMETIC: ("precision",),
    Bound.MEMORY_BANDWIDTH: ("compile_mode", "optimizer_impl", "memory_format", "precision"),
    Bound.COMMUNICATION: ("bucket_mb", "comm_hook"),
    Bound.CAPACITY: (),
}

# What some knobs can save is a part of the step, or what an idle device waits for.
_SAVES = {
    "pin_memory": ("copy", "idle"),
    **dict.fromkeys(("workers", "prefetch", "threads"), ("data", "idle")),
    "optimizer_impl": ("optimizer", "idle"),
}
_WHY = {
    "precision": "matrix products in fewer bits",
    "compile_mode": "fused kernels and fewer launches",
    "optimizer_impl": "fewer kernels in the optimizer step",
    "cuda_graph": "one launch for the whole step",
    "memory_format": "the layout that convolutions run fastest in",
    "cudnn_benchmark": "convolution algorithms chosen by timing them",
    "pin_memory": "copies to the device that overlap with the step",
    "compile_scope": "less to compile, nearly as fast",
    "shape_padding": "no product is left at a size that tensor cores read slowly",
    "activation_checkpointing": "room for the batch",
    "gradient_as_bucket_view": "gradients are not copied into buckets",
    "static_graph": "DDP takes it that every step runs like the first",
    "comm_hook": "gradients sent in half the bytes",
    FOLLOWS: "as many micro-batches in an optimizer step as GLOBAL_BATCH_SIZE needs",
}
# Why to have more or less of something.
_WHY_MORE = {
    "batch_size": "the batch that fills the device",
    "workers": "processes that load beside the step",
    "prefetch": "batches loaded ahead",
    "threads": "more threads share the work of an operator",
    "bucket_mb": "fewer and larger messages",
}
_WHY_LESS = {
    "batch_size": "a smaller batch may fill the device as well",
    "workers": "fewer processes take cores and memory from the step",
    "prefetch": "a shorter queue may be enough",
    "threads": "fewer threads wait less for each other",
    "bucket_mb": "smaller messages, the first of them sooner",
}
_WHY_SHARDED: dict[Value, str] = {
    "ddp": "every rank holds everything, the least is sent",
    "zero1": "each rank keeps a part of the optimizer's state",
    "fsdp_zero2": "parts of everything, parameters whole until the backward pass is through",
    "fsdp_zero3": "parts of everything, parameters gathered block by block",
    "hsdp": "parts of everything inside groups of ranks, copies across them",
}
# Why to go back to what the user has.
_WHY_BACK: dict[tuple[str, Value], str] = {
    ("precision", "fp32"): "casting may cost more than fewer bits save",
    ("compile_mode", "off"): "compiled code may be slower here",
    ("optimizer_impl", "default"): "its own implementation may be faster here",
    ("compile_scope", "model"): "the compiler sees more at once, for more time",
    ("shape_padding", "measured"): "padding may cost more than it saves",
    ("memory_format", "contiguous"): "some operator may lack the other layout",
    ("workers", 0): "workers may cost more than they load",
    ("cuda_graph", "off"): "recording the step may cost more than its launches",
    ("cudnn_benchmark", False): "cuDNN's own choice may be as fast",
    ("pin_memory", False): "pinning batches may cost more than it saves",
    ("activation_checkpointing", "none"): "nothing is computed twice",
    ("gradient_as_bucket_view", False): "gradients apart from the buckets may be as fast",
    ("static_graph", False): "a graph taken as fixed may save nothing here",
    ("comm_hook", "none"): "casting gradients may cost more than sending less saves",
}
_CAN_GO_BACK = frozenset(name for name, _ in _WHY_BACK) - _WHY_MORE.keys()


def effect(name: str, value: Value, history: History, hardware: Hardware) -> Effect:
    """Return what is expected of a value, relative to its knob's baseline."""
    domain = history.space.by_name.get(name)
    if domain is None:
        return _NONE
    if name == "workers":
        return _both(_WORKER_PRICE ** int(value))
    if name == "threads":
        fewer = int(value) < int(domain.values[0])
        return _FEWER_THREADS[hardware.device_kind] if fewer else _NONE
    if name == "shape_padding":
        slow = _LEFT_UNPADDED * (history.space.facts.uneven_share or 0.0)
        return Effect(device=1 / (1 - slow)) if value == "always" else _NONE
    among_ranks = {"sharding": sharding_speed(history.space), **_COMMUNICATION_SPEED}
    if name in among_ranks:
        return _both(among_ranks[name].get(value, 1.0))
    return _EFFECTS[hardware.device_kind].get(name, {}).get(value, _NONE)


def waits_for_data(trial: Done) -> bool:
    """Whether the trial's loop waited for its loader for so long that loading is worth a trial."""
    return wait_share(trial) > DATA_WAIT


def wait_share(trial: Done) -> float:
    """Return the share of the time that the trial's loop waited for its loader."""
    measurement = trial.result.measurement
    return measurement.data_wait_share if measurement else 0.0


def why(name: str, value: Value, trial: Done) -> str:
    """Return in words why a knob's value may speed the trial's plan up."""
    before = trial.plan.values.get(name)
    if name in LOADER_KNOBS and waits_for_data(trial) and not _is_less(value, before):
        return f"the loop waits {wait_share(trial):.0%} of the time for data"
    return in_words(name, value, before)


def bound_acted_on(
    settings: Iterable[tuple[str, Value, Value | None]], history: History
) -> str | None:
    """Return in words what binds the baseline, if any of the settings acts on it.

    Args:
        settings: knobs with their value and the one in whose place it is.
        history: what is known.
    """
    found = history.diagnosis
    if found is None or found.bound is None:
        return None
    acting = _ACTS_ON[found.bound]
    if not any(
        name in acting and not _is_taken_back(name, value, instead_of)
        for name, value, instead_of in settings
    ):
        return None
    share = found.causes.get(found.bound)
    of_step = "" if share is None else f" ({share:.0%} of its step)"
    return f"the baseline is bound by {found.bound.words}{of_step}"


def in_words(name: str, value: Value, instead_of: Value | None) -> str:
    """Return what a knob's value does in another one's place, in words."""
    if (name, value) in _WHY_BACK:
        return _WHY_BACK[name, value]
    if name in _WHY_MORE:
        return _WHY_LESS[name] if _is_less(value, instead_of) else _WHY_MORE[name]
    if name == "sharding":
        return _WHY_SHARDED[value]
    # What a value does in the place of the user's own may be no news after another one.
    if name in _CAN_GO_BACK and instead_of is not None and (name, instead_of) not in _WHY_BACK:
        return f"it may suit the step better than {instead_of}"
    return _WHY.get(name, "a choice that the workload offers")


def _is_taken_back(name: str, value: Value, instead_of: Value | None) -> bool:
    """Whether a change undoes what acts on the bound of the baseline."""
    return (name, value) in _WHY_BACK or (name == "batch_size" and _is_less(value, instead_of))


def _is_less(count: Value, instead_of: Value | None) -> bool:
    return instead_of is not None and int(count) < int(instead_of)


def is_users(name: str, history: History) -> bool:
    """Whether the workload itself brings the knob."""
    return name in dict(history.space.facts.user_knobs)


def share_acted_on(name: str, history: History) -> float | None:
    """Return the largest share of the best plan's step that a knob can save, None if unknown.

    Communication is traced in every trial. What was seen of the baseline alone takes as long in a
    faster step, so more of it.
    """
    found, baseline, best = history.diagnosis, history.baseline, history.best
    if name in COMMUNICATION and best.result.measurement is not None:
        return best.result.measurement.exposed_comm_share
    if found is None or baseline is None or name not in _SAVES:
        return None
    shares: list[float | None] = [getattr(found.shares, part) for part in _SAVES[name]]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return min(1.0, sum(known) * max(1.0, best.throughput / baseline.throughput))


def sharding_speed(space: Space) -> dict[Value, float]:
    """Return the expected speed of each sharding that the space offers, relative to ddp's."""
    domain = space.by_name.get("sharding")
    if domain is None:
        return {}
    large = space.facts.num_parameters >= _LARGE_MODEL
    speeds = _SHARDING_SPEED_LARGE if large else _SHARDING_SPEED
    return {value: speeds[value] for value in domain.values}
