"""The catalogue: every knob, with its name, its numerics class and where its values come from.

A knob is one entry in `CATALOGUE`. To add one: an entry here, its values in `offers`, one function
in `trials/apply.py` or the module of its kind that it names, one test; where it excludes another's
values, an entry in `conflicts`.
Values start with the baseline, what the user's own code does without autotune.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from autotune.search_space import offers
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
    values: Callable[[Site], offers.Offer]
    known: tuple[Value, ...] = ()
    active: Callable[[Plan], bool] = always
    guarded: tuple[Value, ...] = ()
    any_count: bool = False
    missing: Callable[[Site], str] = lambda site: ""


def is_compiled(plan: Plan) -> bool:
    """Whether the plan compiles anything."""
    return plan.get("compile_mode", "off") != "off"


def _under(*shardings: str) -> Callable[[Plan], bool]:
    return lambda plan: plan.get("sharding", "ddp") in shardings


CATALOGUE: tuple[Knob, ...] = (
    Knob(
        name="compile_mode",
        doc="torch.compile mode; off runs eagerly",
        numerics=Numerics.ROUNDING,
        values=offers.compile_mode,
        known=offers.COMPILE_MODES,
    ),
    Knob(
        name="compile_scope",
        doc="compile the whole model, or its blocks and layers one by one (compiles faster)",
        numerics=Numerics.ROUNDING,
        values=offers.compile_scope,
        known=("model", "block"),
        active=is_compiled,
    ),
    Knob(
        name="shape_padding",
        doc="pad uneven matrix products where the compiler times a gain, or always (more memory)",
        numerics=Numerics.ROUNDING,
        values=offers.shape_padding,
        known=offers.SHAPE_PADDING,
        active=is_compiled,
    ),
    Knob(
        name="precision",
        doc="fp32 as torch sets it up, tf32 matmuls, or autocast in bf16 or fp16",
        numerics=Numerics.PRECISION,
        values=offers.precision,
        known=("fp32", "tf32", "bf16", "fp16"),
    ),
    Knob(
        name="batch_size",
        doc="samples per device and micro-step",
        numerics=Numerics.TRAINING,
        values=offers.batch_size,
        any_count=True,
    ),
    Knob(
        name="accumulation",
        doc="micro-steps per optimizer step; follows from GLOBAL_BATCH_SIZE and batch_size",
        numerics=Numerics.EXACT,
        values=offers.accumulation,
    ),
    Knob(
        name="workers",
        doc="DataLoader worker processes; 0 loads in the training process",
        numerics=Numerics.EXACT,
        values=offers.workers,
        any_count=True,
    ),
    Knob(
        name="prefetch",
        doc="batches each worker prepares ahead",
        numerics=Numerics.EXACT,
        values=offers.prefetch,
        known=(2, 4, 8),
        any_count=True,
        active=lambda plan: int(plan.get("workers", 0)) > 0,
    ),
    Knob(
        name="pin_memory",
        doc="page-locked batches with non-blocking copies",
        numerics=Numerics.EXACT,
        values=lambda site: offers.cuda_only(site, offers.ON_OFF),
        known=offers.ON_OFF,
    ),
    Knob(
        name="activation_checkpointing",
        doc="recompute activations in the backward pass: less memory, more arithmetic",
        numerics=Numerics.EXACT,
        values=offers.checkpointing,
        known=offers.CHECKPOINTING,
    ),
    Knob(
        name="memory_format",
        doc="layout of 4-D tensors; channels_last feeds tensor cores in convolutions",
        numerics=Numerics.ROUNDING,
        values=lambda site: offers.needs_conv(site, ("contiguous", "channels_last")),
        known=("contiguous", "channels_last"),
    ),
    Knob(
        name="optimizer_impl",
        doc="implementation of the user's optimizer: one kernel per tensor list, or one in all",
        numerics=Numerics.ROUNDING,
        values=offers.optimizer_impl,
        known=("default", "foreach", "fused"),
    ),
    Knob(
        name="cuda_graph",
        doc="record the whole step once and replay it by one launch; no Python runs in it again",
        numerics=Numerics.ROUNDING,
        values=offers.cuda_graph,
        known=offers.CUDA_GRAPH,
        guarded=("step",),
    ),
    Knob(
        name="cudnn_benchmark",
        doc="let cuDNN time its convolution algorithms at each new shape",
        numerics=Numerics.ROUNDING,
        values=offers.cudnn_benchmark,
        known=offers.ON_OFF,
    ),
    Knob(
        name="threads",
        doc="CPU threads inside one operator; on a GPU machine those of the loader and the host",
        numerics=Numerics.EXACT,
        values=offers.threads,
        any_count=True,
    ),
    Knob(
        name="sharding",
        doc="what each rank holds: all (ddp), less optimizer state, or a part of everything",
        numerics=Numerics.EXACT,
        values=offers.sharding,
        known=offers.SHARDINGS,
        missing=offers.missing_shardings,
    ),
    Knob(
        name="bucket_mb",
        doc="MB of gradients that DDP averages at once, while the backward pass goes on",
        numerics=Numerics.EXACT,
        values=offers.of_ranks(offers.BUCKETS_MB),
        any_count=True,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="gradient_as_bucket_view",
        doc="gradients live in DDP's buckets, which saves a copy of each",
        numerics=Numerics.EXACT,
        values=offers.of_ranks(offers.ON_OFF),
        known=offers.ON_OFF,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="static_graph",
        doc="DDP takes it that every step uses the same parameters in the same way",
        numerics=Numerics.EXACT,
        values=offers.static_graph,
        known=offers.ON_OFF,
        active=_under("ddp", "zero1"),
    ),
    Knob(
        name="comm_hook",
        doc="send gradients in half precision",
        numerics=Numerics.PRECISION,
        values=offers.comm_hook,
        known=offers.COMM_HOOKS,
        active=_under("ddp"),
    ),
)

BY_NAME: dict[str, Knob] = {knob.name: knob for knob in CATALOGUE}
GUARDED: tuple[Value, ...] = tuple(value for knob in CATALOGUE for value in knob.guarded)
