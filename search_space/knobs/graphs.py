"""Graphs: the whole training step as one CUDA graph."""

from autotune.search_space.bound import Bound
from autotune.search_space.knobs.batch import accumulates
from autotune.search_space.knobs.compiler import records_cuda_graphs
from autotune.search_space.knobs.knob import (
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
    cuda_only,
    speed_by_device,
)
from autotune.search_space.knobs.memory import checkpoints
from autotune.search_space.knobs.optimizer import is_fused
from autotune.search_space.knobs.precision import scales_gradients
from autotune.search_space.plan import Plan
from autotune.search_space.site import Site

_VALUES = ("off", "step")


def _is_recorded(plan: Plan) -> bool:
    return plan.get("cuda_graph", "off") == "step"


def _values(site: Site) -> Offer:
    if site.num_ranks > 1:
        return Out("a step is recorded on one device only")
    if site.facts.rebuild_problem:
        return Out(site.facts.rebuild_problem)
    if not (site.facts.recordable or site.facts.recordable_only_fused):
        return Out(f"{site.facts.optimizer_class} does not take capturable")
    return cuda_only(site, _VALUES)


CUDA_GRAPH = Knob(
    name="cuda_graph",
    doc="record the whole step once and replay it by one launch; no Python runs in it again",
    numerics=Numerics.ROUNDING,
    values=_values,
    known=_VALUES,
    guarded=("step",),
    speed=speed_by_device(cuda={"step": Effect(host=30.0)}),
    acts_on=frozenset({Bound.LAUNCHES}),
    saves=None,
    memory=MemoryUse(saving={"off": 1, None: 1}),  # the graph has a memory pool of its own
    recompiles_on=NO_DEVICE,
    measured_on=MeasuredOn.ONE_DEVICE,
    reasons=Reasons(
        change="one launch for the whole step",
        back={"off": "recording the step may cost more than its launches"},
        allow="your step waits for launches: `--allow step` also tries to record all of it as one "
        "CUDA graph, where your code changes nothing in Python from step to step",
    ),
    conflicts=(
        Conflict(
            knobs=("cuda_graph", "compile_mode"),
            found=lambda plan, facts: _is_recorded(plan) and records_cuda_graphs(plan),
            reason="that mode records CUDA graphs of its own, which cannot be recorded in turn; "
            "use compile_mode=default",
        ),
        Conflict(
            knobs=("cuda_graph", "optimizer_impl"),
            found=lambda plan, facts: (
                _is_recorded(plan) and facts.recordable_only_fused and not is_fused(plan, facts)
            ),
            reason="only the fused kernel of this optimizer reads its rate from the device; use "
            "optimizer_impl=fused",
        ),
        Conflict(
            knobs=("cuda_graph", "precision"),
            found=lambda plan, facts: _is_recorded(plan) and scales_gradients(plan),
            reason="with fp16 the host looks at the gradients before it lets the optimizer step",
        ),
        Conflict(
            knobs=("cuda_graph", "accumulation"),
            found=lambda plan, facts: _is_recorded(plan) and accumulates(plan),
            reason="with accumulation not every call ends in a step of the optimizer",
        ),
        Conflict(
            knobs=("cuda_graph", "activation_checkpointing"),
            found=lambda plan, facts: _is_recorded(plan) and checkpoints(plan),
            reason="checkpointing reads the state of the random numbers on the host",
        ),
    ),
)

KNOBS = (CUDA_GRAPH,)
