"""Offload: what waits in the memory of the host instead of that of the GPU."""

from autotune.search_space.knobs.compiler import (
    compiles_blocks,
    is_compiled,
    records_cuda_graphs,
)
from autotune.search_space.knobs.knob import (
    ANY_DEVICE,
    NO_DEVICE,
    Conflict,
    Effect,
    Knob,
    MeasuredOn,
    MemoryUse,
    Numerics,
    Offer,
    Out,
    Reasons,
    StepPart,
    cuda_only,
    needs_blocks,
    speed_by_device,
)
from autotune.search_space.knobs.optimizer import FUSED_ON_PARTS, is_fused
from autotune.search_space.knobs.precision import scales_gradients
from autotune.search_space.knobs.ranks import FSDP, casts_blocks, offloads_parameters
from autotune.search_space.plan import Plan
from autotune.search_space.site import Site

_VALUES = ("off", "host")


def offloads_activations(plan: Plan) -> bool:
    """Whether activations wait for the backward pass in the memory of the host."""
    return plan.get("activation_offload", "off") != "off"


def _activations(site: Site) -> Offer:
    offer = cuda_only(site, _VALUES)
    return offer if isinstance(offer, Out) else needs_blocks(site, _VALUES)


def _parameters(site: Site) -> Offer:
    if site.facts.shared_across:
        return Out(site.facts.shared_across)
    if site.facts.sparse_gradients:
        return Out("FSDP, which moves the parameters, cannot cut sparse gradients of an embedding")
    if site.num_ranks > 1 and site.facts.varies:
        return Out("which modules run differs from step to step, and ranks wait for each other")
    offer = cuda_only(site, _VALUES)
    return offer if isinstance(offer, Out) else needs_blocks(site, _VALUES)


def _shards_or_is_alone(plan: Plan) -> bool:
    """Whether FSDP moves the parameters: on one device it does nothing else."""
    return "sharding" not in plan or plan["sharding"] in FSDP


def _is_alone(plan: Plan) -> bool:
    """Whether FSDP moves the parameters of one device."""
    return offloads_parameters(plan) and "sharding" not in plan


ACTIVATION_OFFLOAD = Knob(
    name="activation_offload",
    doc="copy what checkpointing keeps of each block but the last to page-locked memory of the "
    "host, and back for the backward pass",
    numerics=Numerics.EXACT,
    values=_activations,
    known=_VALUES,
    # On an H200 the inputs of the blocks of a Llama of 1.1 billion parameters cost no time; all
    # of its activations made a step 4.7 times as long. What small blocks lose is a guess.
    speed=speed_by_device(cuda={"host": Effect(host=0.9, device=0.99)}),
    doubt=0.1,
    acts_on=frozenset(),
    saves=None,
    memory=MemoryUse(
        saving={"host": 1},
        activations={"host": 0.7},
        why_less="activations wait in the memory of the host",
        makes_room=True,
    ),
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ALL_RANKS,
    reasons=Reasons(
        change="room for the batch: what checkpointing keeps waits in the memory of the host",
        back={"off": "nothing is copied to the host and back"},
    ),
    conflicts=(
        Conflict(
            knobs=("activation_offload", "compile_scope"),
            found=lambda plan, facts: (
                offloads_activations(plan) and is_compiled(plan) and not compiles_blocks(plan)
            ),
            reason="a model compiled as a whole has no blocks whose activations could be moved; "
            "use compile_scope=block",
        ),
        Conflict(
            knobs=("activation_offload", "compile_mode"),
            found=lambda plan, facts: offloads_activations(plan) and records_cuda_graphs(plan),
            reason="CUDA graphs keep activations in memory of their own, which the next replay "
            "writes to while they are still copied; use compile_mode=default",
        ),
        Conflict(
            knobs=("activation_offload", "cuda_graph"),
            found=lambda plan, facts: (
                offloads_activations(plan) and plan.get("cuda_graph", "off") != "off"
            ),
            reason="memory of the host cannot be allocated while a step is recorded",
        ),
        Conflict(
            knobs=("activation_offload", "activation_checkpointing"),
            found=lambda plan, facts: (
                offloads_activations(plan)
                and plan.get("activation_checkpointing", "none") != "full"
            ),
            reason="all that a block keeps takes longer to copy to the host and back than to "
            "compute again; use activation_checkpointing=full, which keeps its input alone",
        ),
    ),
)
PARAMETER_OFFLOAD = Knob(
    name="parameter_offload",
    doc="keep parameters, gradients and the optimizer's state in the memory of the host, and step "
    "the optimizer there; FSDP copies each block to the GPU as it runs, also on one GPU",
    numerics=Numerics.ROUNDING,
    values=_parameters,
    known=_VALUES,
    guarded=("host",),
    active=_shards_or_is_alone,
    # A Llama of 1.1 billion parameters ran at 0.44 of its speed on an H200.
    speed=speed_by_device(cuda={"host": Effect(host=0.5, device=0.45)}),
    doubt=0.3,
    acts_on=frozenset(),
    saves=frozenset[StepPart](),
    memory=MemoryUse(
        saving={"host": 1},
        why_less="parameters, gradients and optimizer state are in the memory of the host",
        makes_room=True,
    ),
    recompiles_on=ANY_DEVICE,
    measured_on=MeasuredOn.ALL_RANKS,
    reasons=Reasons(
        change="a model that does not fit into the GPU can train",
        back={"off": "nothing is copied from the host, and the GPU steps the optimizer"},
    ),
    conflicts=(
        Conflict(
            knobs=("parameter_offload", "precision"),
            found=lambda plan, facts: offloads_parameters(plan) and scales_gradients(plan),
            reason="with fp16 the GPU looks at the gradients before the optimizer steps, and they "
            "are in the memory of the host; use precision=bf16",
        ),
        # The others are FSDP's on one device, where no sharding stands in the plan.
        Conflict(
            knobs=("parameter_offload", "precision"),
            found=lambda plan, facts: (
                _is_alone(plan) and facts.has_batch_norm and casts_blocks(plan)
            ),
            reason="FSDP, which moves the parameters, computes batch norms in half precision, and "
            "their running statistics are fp32",
        ),
        Conflict(
            knobs=("parameter_offload", "compile_mode"),
            found=lambda plan, facts: _is_alone(plan) and records_cuda_graphs(plan),
            reason="CUDA graphs replay fixed addresses, and FSDP brings parameters to new ones; "
            "use compile_mode=default",
        ),
        Conflict(
            knobs=("parameter_offload", "memory_format"),
            found=lambda plan, facts: (
                _is_alone(plan) and plan.get("memory_format", "contiguous") == "channels_last"
            ),
            reason="FSDP, which moves the parameters, wants them contiguous",
        ),
        Conflict(
            knobs=("parameter_offload", "optimizer_impl"),
            found=lambda plan, facts: (
                _is_alone(plan)
                and is_fused(plan, facts)
                and facts.optimizer_class not in FUSED_ON_PARTS
            ),
            reason="torch has no fused kernel of this optimizer for the parameters that FSDP "
            "moves; use optimizer_impl=foreach",
        ),
        Conflict(
            knobs=("parameter_offload", "cuda_graph"),
            found=lambda plan, facts: (
                offloads_parameters(plan) and plan.get("cuda_graph", "off") != "off"
            ),
            reason="the optimizer's step on the host cannot be recorded",
        ),
    ),
)

KNOBS = (ACTIVATION_OFFLOAD, PARAMETER_OFFLOAD)
