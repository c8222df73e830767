"""The catalogue: every knob, its values here, and why it is out where it is out.

A knob is one entry in `CATALOGUE`. To add one: an entry here, one function in `trials/apply.py`
or the module of its kind that it names, one test; where it excludes another's values, an entry in
`conflicts`.
Values start with the baseline, what the user's own code does without autotune.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from autotune.search_space.conflicts import FSDP
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site


class Numerics(enum.Enum):
    """How far a knob may move the numbers, narrowest first. `training` changes what is trained."""

    EXACT = "exact"
    ROUNDING = "rounding"
    PRECISION = "precision"
    TRAINING = "training"

    @property
    def rank(self) -> int:
        """Position from the narrowest (0) to the widest."""
        return list(Numerics).index(self)


@dataclass(frozen=True, slots=True)
class Out:
    """The knob does not apply here, and why, in words for the user."""

    reason: str


def always(plan: Plan) -> bool:
    """A knob that applies whatever the others say."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing that may vary.

    Attributes:
        name: as plans, tables and the command line spell it.
        doc: one line for the user.
        numerics: how far it may move the numbers.
        values: its values at a site, baseline first, or `Out`.
        known: every value it can have anywhere; empty when that depends on the workload.
        active: whether it applies beside the other values of a plan.
        guarded: values that run only after `--allow VALUE`, or where `--fix` names them.
        any_count: `--fix` and plan files may name any positive integer, not only `values`.
        missing: which of the known values a site lacks and why, where a user would ask.
    """

    name: str
    doc: str
    numerics: Numerics
    values: Callable[[Site], tuple[Value, ...] | Out]
    known: tuple[Value, ...] = ()
    active: Callable[[Plan], bool] = always
    guarded: tuple[Value, ...] = ()
    any_count: bool = False
    missing: Callable[[Site], str] = lambda site: ""


COMPILE_MODES = (
    "off",
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
)
SHARDINGS = ("ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp")
BUCKETS_MB = (25, 1, 5, 10, 50, 100, 200)
COMM_HOOKS = ("none", "bf16", "fp16")
CHECKPOINTING = ("none", "selective", "every-4", "every-2", "full")
CUDA_GRAPH = ("off", "step")
ON_OFF = (False, True)
_ONE_RANK = "a trial has one rank, so nothing is spread or communicated"


def _compile_mode(site: Site) -> tuple[Value, ...] | Out:
    if site.facts.compiler_problem:
        return Out(f"torch.compile does not work here: {site.facts.compiler_problem}")
    # CUDA graphs and Triton templates are what the other modes add; a CPU has neither.
    return COMPILE_MODES if site.hardware.device_kind == "cuda" else ("off", "default")


def _compile_scope(site: Site) -> tuple[Value, ...] | Out:
    if site.facts.compiler_problem:
        return Out(f"torch.compile does not work here: {site.facts.compiler_problem}")
    return _needs_blocks(site, ("model", "block"))


def _precision(site: Site) -> tuple[Value, ...] | Out:
    if site.hardware.device_kind == "cpu":
        return ("fp32", "bf16") if site.facts.bf16 else ("fp32",)
    ampere = site.hardware.capability is not None and site.hardware.capability >= (8, 0)
    values = ("fp32",) + (("tf32",) if ampere else ()) + (("bf16",) if site.facts.bf16 else ())
    return (*values, "fp16") if site.facts.fp16 else values


def _batch_size(site: Site) -> tuple[Value, ...] | Out:
    own = site.own_batch_size
    if site.facts.fixed_batches:
        return (own,)
    if site.facts.global_batch_size is not None:
        return (own, *(size for size in site.fitting_batches if size != own))
    largest = own * 64
    if site.facts.dataset_len is not None:
        largest = min(largest, site.facts.dataset_len // site.num_ranks)
    ladder = [own]
    while ladder[-1] * 2 <= largest:
        ladder.append(ladder[-1] * 2)
    smaller = [own // 2**k for k in (1, 2) if own % 2**k == 0]
    return (*ladder, *(size for size in smaller if size >= 1))


def _accumulation(site: Site) -> tuple[Value, ...] | Out:
    if site.facts.global_batch_size is None:
        return Out("GLOBAL_BATCH_SIZE is not set, so each step is one batch")
    sizes = _batch_size(site)
    assert isinstance(sizes, tuple)
    return tuple(site.facts.global_batch_size // site.num_ranks // int(size) for size in sizes)


def _workers(site: Site) -> tuple[Value, ...] | Out:
    if site.facts.repeats_in_workers:
        return Out(
            "each worker would read the whole of the iterable dataset, so that samples repeat; "
            "let it share them out by torch.utils.data.get_worker_info()"
        )
    if site.facts.open_file is not None:
        return Out(
            f"the dataset holds an open file ({site.facts.open_file}), and worker processes would "
            "share its position and read each other's samples; open it when __getitem__ first runs"
        )
    counts = [0, 1]
    while counts[-1] * 2 <= site.cores_per_rank:
        counts.append(counts[-1] * 2)
    if counts[-1] < site.cores_per_rank:
        counts.append(site.cores_per_rank)
    return tuple(counts)


def _prefetch(site: Site) -> tuple[Value, ...] | Out:
    workers = _workers(site)
    return workers if isinstance(workers, Out) else (2, 4, 8)


def _cuda_only(site: Site, values: tuple[Value, ...]) -> tuple[Value, ...] | Out:
    return values if site.hardware.device_kind == "cuda" else Out("needs a CUDA device")


def _needs_blocks(site: Site, values: tuple[Value, ...]) -> tuple[Value, ...] | Out:
    if site.facts.num_blocks < 2:
        return Out("no repeated blocks found; define blocks(model) in the workload to name them")
    return values


def _checkpointing(site: Site) -> tuple[Value, ...] | Out:
    coarse = {"every-4": 4, "every-2": 2}
    fitting = tuple(v for v in CHECKPOINTING if coarse.get(v, 0) < max(site.facts.num_blocks, 1))
    return _needs_blocks(site, fitting)


def _needs_conv(site: Site, values: tuple[Value, ...]) -> tuple[Value, ...] | Out:
    return values if site.facts.has_conv2d else Out("the model has no 2-D convolution")


def _cudnn_benchmark(site: Site) -> tuple[Value, ...] | Out:
    values = _cuda_only(site, ON_OFF)
    return values if isinstance(values, Out) else _needs_conv(site, values)


def _optimizer_impl(site: Site) -> tuple[Value, ...] | Out:
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not site.facts.optimizer_impls:
        return Out(f"{site.facts.optimizer_class} takes neither foreach nor fused")
    return ("default", *site.facts.optimizer_impls)


def _cuda_graph(site: Site) -> tuple[Value, ...] | Out:
    if site.num_ranks > 1:
        return Out("a step is recorded on one device only")
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not (site.facts.recordable or site.facts.recordable_only_fused):
        return Out(f"{site.facts.optimizer_class} does not take capturable")
    return _cuda_only(site, CUDA_GRAPH)


def _threads(site: Site) -> tuple[Value, ...] | Out:
    if site.hardware.device_kind == "cuda":
        # Threads that spin while they wait for the next CPU operator take the cores from the
        # thread that launches kernels; one thread never spins.
        return (site.cores_per_rank, 1) if site.cores_per_rank > 1 else (1,)
    counts, count = [], 1
    while count < site.cores_per_rank:
        counts.append(count)
        count *= 2
    if not counts and max(site.hardware.num_devices, site.num_ranks) == 1:
        return Out("only one core is available")
    # Those who share the machine are told so: by itself torch takes all the cores in each.
    return (site.cores_per_rank, *counts)


def _sharding(site: Site) -> tuple[Value, ...] | Out:
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    return tuple(value for value in _shardings_on(site) if not _not_for(value, site.facts))


def _shardings_on(site: Site) -> tuple[str, ...]:
    # Two copies of at least two parts each: with fewer ranks it is ddp or fsdp_zero3.
    grid = site.num_ranks >= 4 and site.num_ranks % 2 == 0
    return SHARDINGS if grid else SHARDINGS[:-1]


def _missing_shardings(site: Site) -> str:
    reasons: dict[str, list[str]] = {}
    for value in _shardings_on(site) if site.num_ranks > 1 else ():
        if reason := _not_for(value, site.facts):
            reasons.setdefault(reason, []).append(value)
    return "; ".join(f"without {', '.join(names)}: {why}" for why, names in reasons.items())


def _not_for(sharding: str, facts: WorkloadFacts) -> str | None:
    """Return why a sharding does not train the workload as ddp does, or None."""
    if sharding == "zero1" and facts.rebuild_problem:
        return facts.rebuild_problem  # each rank builds the optimizer anew, for its part
    if sharding == "zero1" and facts.own_step:
        return (
            f"each rank would step with its part of the gradients, and {facts.optimizer_class}'s "
            "own step may look at all of them, as clipping does"
        )
    if sharding in FSDP and facts.varies:
        return "which modules run differs from step to step, and ranks wait for each other in each"
    if sharding in FSDP and facts.shared_across:
        return facts.shared_across
    if sharding in FSDP and facts.sparse_gradients:
        return "it cannot cut the sparse gradients of an embedding"
    return None


def _of_ranks(values: tuple[Value, ...]) -> Callable[[Site], tuple[Value, ...] | Out]:
    return lambda site: Out(_ONE_RANK) if site.num_ranks == 1 else values


def _static_graph(site: Site) -> tuple[Value, ...] | Out:
    if site.num_ranks > 1 and site.facts.varies:
        return Out("which modules run differs from step to step")
    return _of_ranks(ON_OFF)(site)


def _comm_hook(site: Site) -> tuple[Value, ...] | Out:
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    if site.facts.sparse_gradients:
        return Out("sparse gradients are not sent in half precision")
    # torch's bf16 hook refuses every backend but NCCL.
    return COMM_HOOKS if site.hardware.device_kind == "cuda" else ("none", "fp16")


def _under(*shardings: str) -> Callable[[Plan], bool]:
    return lambda plan: plan.get("sharding", "ddp") in shardings


CATALOGUE: tuple[Knob, ...] = (
    Knob(
        name="compile_mode",
        doc="torch.compile mode; off runs eagerly",
        numerics=Numerics.ROUNDING,
        values=_compile_mode,
        known=COMPILE_MODES,
    ),
    Knob(
        name="compile_scope",
        doc="compile the whole model, or its blocks and layers one by one (compiles faster)",
        numerics=Numerics.ROUNDING,
        values=_compile_scope,
        known=("model", "block"),
        active=lambda plan: plan.get("compile_mode", "off") != "off",
    ),
    Knob(
        name="precision",
        doc="fp32 as torch sets it up, tf32 matmuls, or autocast in bf16 or fp16",
        numerics=Numerics.PRECISION,
        values=_precision,
        known=("fp32", "tf32", "bf16", "fp16"),
    ),
    Knob(
        name="batch_size",
        doc="samples per device and micro-step",
        numerics=Numerics.TRAINING,
        values=_batch_size,
        any_count=True,
    ),
    Knob(
        name="accumulation",
        doc="micro-steps per optimizer step; follows from GLOBAL_BATCH_SIZE and batch_size",
        numerics=Numerics.EXACT,
        values=_accumulation,
    ),
    Knob(
        name="workers",
        doc="DataLoader worker processes; 0 loads in the training process",
        numerics=Numerics.EXACT,
        values=_workers,
        any_count=True,
    ),
    Knob(
        name="prefetch",
        doc="batches each worker prepares ahead",
        numerics=Numerics.EXACT,
        values=_prefetch,
        known=(2, 4, 8),
        any_count=True,
        active=lambda plan: int(plan.get("workers", 0)) > 0,
    ),
    Knob(
        name="pin_memory",
        doc="page-locked batches with non-blocking copies",
        numerics=Numerics.EXACT,
        values=lambda site: _cuda_only(site, ON_OFF),
        known=ON_OFF,
    ),
    Knob(
        name="activation_checkpointing",
        doc="recompute activations in the backward pass: less memory, more arithmetic",
        numerics=Numerics.EXACT,
        values=_checkpointing,
        known=CHECKPOINTING,
    ),
    Knob(
        name="memory_format",
        doc="layout of 4-D tensors; channels_last feeds tensor cores in convolutions",
        numerics=Numerics.ROUNDING,
        values=lambda site: _needs_conv(site, ("contiguous", "channels_last")),
        known=("contiguous", "channels_last"),
    ),
    Knob(
        name="optimizer_impl",
        doc="implementation of the user's optimizer: one kernel per tensor list, or one in all",
        numerics=Numerics.ROUNDING,
        values=_optimizer_impl,
        known=("default", "foreach", "fused"),
    ),
    Knob(
        name="cuda_graph",
        doc="record the whole step once and replay it by one launch; no Python runs in it again",
        numerics=Numerics.ROUNDING,
        values=_cuda_graph,
        known=CUDA_GRAPH,
        guarded=("step",),
    ),
    Knob(
        name="cudnn_benchmark",
        doc="let cuDNN time its convolution algorithms at each new shape",
        numerics=Numerics.ROUNDING,
        values=_cudnn_benchmark,
        known=ON_OFF,
    ),
    Knob(
        name="threads",
        doc="CPU threads inside one operator; on a GPU machine those of the loader and the host",
        numerics=Numerics.EXACT,
        values=_threads,
        any_count=True,
    ),
    Knob(
        name="sharding",
        doc="what each rank holds: all (ddp), less optimizer state, or a part of everything",
        numerics=Numerics.EXACT,
        values=_sharding,
        known=SHARDINGS,
        missing=_missing_shardings,
    ),
    Knob(
        name="bucket_mb",
        doc="MB of gradients that DDP averages at once, while the backward pass goes on",
        numerics=Numerics.EXACT,
        values=_of_ranks(BUCKETS_MB),
        any_count=True,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="gradient_as_bucket_view",
        doc="gradients live in DDP's buckets, which saves a copy of each",
        numerics=Numerics.EXACT,
        values=_of_ranks(ON_OFF),
        known=ON_OFF,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="static_graph",
        doc="DDP takes it that every step uses the same parameters in the same way",
        numerics=Numerics.EXACT,
        values=_static_graph,
        known=ON_OFF,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="comm_hook",
        doc="send gradients in half precision",
        numerics=Numerics.PRECISION,
        values=_comm_hook,
        known=COMM_HOOKS,
        active=_under("ddp"),
    ),
)

BY_NAME: dict[str, Knob] = {knob.name: knob for knob in CATALOGUE}
GUARDED: tuple[Value, ...] = tuple(value for knob in CATALOGUE for value in knob.guarded)
