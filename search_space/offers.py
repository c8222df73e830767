"""What each knob offers at a site: its values, baseline first, or why it is out.

One function for each knob of the catalogue whose values depend on the workload or the machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.search_space.conflicts import FSDP
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Value
from autotune.search_space.site import Site


@dataclass(frozen=True, slots=True)
class Out:
    """The knob does not apply here, and why, in words for the user."""

    reason: str


Offer = tuple[Value, ...] | Out

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
SHAPE_PADDING = ("measured", "always")
_WORTH_PADDING = 0.01  # share of the model's FLOPs in products that the compiler may pad
# Of a loader that keeps a core busy for less than this part of the time, as it waits for storage
# or a network: so many times as many workers as there are cores.
_WAITS, _FOR_A_WAITING_CORE = 0.25, 4
_ONE_RANK = "a trial has one rank, so nothing is spread or communicated"


def compile_mode(site: Site) -> Offer:
    """Return the modes, CUDA graphs and Triton templates among them on a GPU."""
    # CUDA graphs and Triton templates are what the other modes add; a CPU has neither.
    modes = COMPILE_MODES if site.hardware.device_kind == "cuda" else ("off", "default")
    return _uncompiled(site) or modes


def compile_scope(site: Site) -> Offer:
    """Return both scopes where there are blocks."""
    return _uncompiled(site) or _needs_blocks(site, ("model", "block"))


def shape_padding(site: Site) -> Offer:
    """Return when the compiler may pad, where there is something to pad."""
    share = site.facts.uneven_share
    if share is None:
        return Out("the model's matrix products are not known: its code needs values to run")
    if share < _WORTH_PADDING:
        return Out("no weight of a large matrix product has a side that is no multiple of 8")
    return _uncompiled(site) or cuda_only(site, SHAPE_PADDING)


def _uncompiled(site: Site) -> Out | None:
    problem = site.facts.compiler_problem
    return Out(f"torch.compile does not work here: {problem}") if problem else None


def precision(site: Site) -> Offer:
    """Return what the device computes in."""
    if site.hardware.device_kind == "cpu":
        return ("fp32", "bf16") if site.facts.bf16 else ("fp32",)
    ampere = site.hardware.capability is not None and site.hardware.capability >= (8, 0)
    values = ("fp32",) + (("tf32",) if ampere else ()) + (("bf16",) if site.facts.bf16 else ())
    return (*values, "fp16") if site.facts.fp16 else values


def batch_size(site: Site) -> Offer:
    """Return the user's own batch, its doublings while samples last, and two smaller ones."""
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


def accumulation(site: Site) -> Offer:
    """Return what keeps the global batch with each batch, where there is one."""
    if site.facts.global_batch_size is None:
        return Out("GLOBAL_BATCH_SIZE is not set, so each step is one batch")
    sizes = batch_size(site)
    assert isinstance(sizes, tuple)
    return tuple(site.facts.global_batch_size // site.num_ranks // int(size) for size in sizes)


def workers(site: Site) -> Offer:
    """Return counts up to the cores of a rank, and more for a loader that mostly waits."""
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
    for_each_core = _FOR_A_WAITING_CORE if site.facts.loader_busy_share < _WAITS else 1
    most = site.cores_per_rank * for_each_core
    counts = [0, 1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    if counts[-1] < most:
        counts.append(most)
    return tuple(counts)


def prefetch(site: Site) -> Offer:
    """Return the lengths of each worker's queue."""
    loading = workers(site)
    return loading if isinstance(loading, Out) else (2, 4, 8)


def cuda_only(site: Site, values: tuple[Value, ...]) -> Offer:
    """Return the values on a GPU."""
    return values if site.hardware.device_kind == "cuda" else Out("needs a CUDA device")


def _needs_blocks(site: Site, values: tuple[Value, ...]) -> Offer:
    if site.facts.num_blocks < 2:
        return Out("no repeated blocks found; define blocks(model) in the workload to name them")
    return values


def checkpointing(site: Site) -> Offer:
    """Return the ways to checkpoint where there are blocks."""
    coarse = {"every-4": 4, "every-2": 2}
    fitting = tuple(v for v in CHECKPOINTING if coarse.get(v, 0) < max(site.facts.num_blocks, 1))
    return _needs_blocks(site, fitting)


def needs_conv(site: Site, values: tuple[Value, ...]) -> Offer:
    """Return the values for a model with convolutions."""
    return values if site.facts.has_conv2d else Out("the model has no 2-D convolution")


def cudnn_benchmark(site: Site) -> Offer:
    """Return whether cuDNN may try its kernels."""
    values = cuda_only(site, ON_OFF)
    return values if isinstance(values, Out) else needs_conv(site, values)


def optimizer_impl(site: Site) -> Offer:
    """Return the implementations that the user's optimizer has for its parameters."""
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not site.facts.optimizer_impls:
        return Out(f"{site.facts.optimizer_class} takes neither foreach nor fused")
    return ("default", *site.facts.optimizer_impls)


def cuda_graph(site: Site) -> Offer:
    """Return whether a whole step may be recorded."""
    if site.num_ranks > 1:
        return Out("a step is recorded on one device only")
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not (site.facts.recordable or site.facts.recordable_only_fused):
        return Out(f"{site.facts.optimizer_class} does not take capturable")
    return cuda_only(site, CUDA_GRAPH)


def threads(site: Site) -> Offer:
    """Return counts up to the cores of a rank."""
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


def sharding(site: Site) -> Offer:
    """Return the strategies that the workload allows on several ranks."""
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    return tuple(value for value in _shardings_on(site) if not _not_for(value, site.facts))


def _shardings_on(site: Site) -> tuple[str, ...]:
    # Two copies of at least two parts each: with fewer ranks it is ddp or fsdp_zero3.
    grid = site.num_ranks >= 4 and site.num_ranks % 2 == 0
    return SHARDINGS if grid else SHARDINGS[:-1]


def missing_shardings(site: Site) -> str:
    """Return which strategies the workload does not allow, and why."""
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


def of_ranks(values: tuple[Value, ...]) -> Callable[[Site], Offer]:
    """Return what offers the values on several ranks."""
    return lambda site: Out(_ONE_RANK) if site.num_ranks == 1 else values


def static_graph(site: Site) -> Offer:
    """Return whether DDP may take all steps for alike."""
    if site.num_ranks > 1 and site.facts.varies:
        return Out("which modules run differs from step to step")
    return of_ranks(ON_OFF)(site)


def comm_hook(site: Site) -> Offer:
    """Return what gradients may be sent in."""
    if site.num_ranks == 1:
        return Out(_ONE_RANK)
    if site.facts.sparse_gradients:
        return Out("sparse gradients are not sent in half precision")
    # torch's bf16 hook refuses every backend but NCCL.
    return COMM_HOOKS if site.hardware.device_kind == "cuda" else ("none", "fp16")
