"""Spreads a model over the ranks of a trial: one short function per value of `sharding`.

    ddp          every rank holds everything; gradients are averaged in buckets
    zero1        the same, with the optimizer's state cut into one part per rank
    fsdp_zero2   parameters too are cut into parts, and whole from the forward to the backward pass
    fsdp_zero3   parameters are whole only while their block runs
    hsdp         fsdp_zero3 among neighbours, copied across groups of them

FSDP follows torchtitan's order: each block is sharded by itself, then what is left by the root.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from autotune.search_space.knobs.ranks import FSDP
from autotune.search_space.plan import Plan
from autotune.trials.applying.aligned import AlignedBuffers
from autotune.trials.applying.construction import materialise
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import Ranks
from autotune.trials.request import RankPlace

ComputeLoss = Callable[[nn.Module, Any], Tensor]


_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_TORCHS_BUCKET_MB = 25
_WATCHED = 7  # forward passes; in a trial they come before what is measured
# DDP's words in the step after one that left out a parameter which the first step used.
_LEFT_OUT_LATER = "Expected to have finished reduction in the prior iteration"
# It builds the graph of its part of the model in the backward pass only.
_HIDES_PARAMETERS = "CheckpointFunctionBackward"


class Sharded(Protocol):
    """A model as its strategy runs it.

    Attributes:
        casts: whether it computes in half precision by itself, and needs no autocast.
    """

    casts: bool

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """Return the loss of this rank's batch."""

    def sync_gradients(self, *, due: bool) -> None:
        """Say whether the next backward pass averages gradients over ranks, or accumulates."""

    def has_run_backward(self) -> None:
        """Check what the backward pass left behind.

        Raises:
            InvalidPlanError: when other ranks would wait for this one for ever.
        """


def cuts_parameters(plan: Plan, place: RankPlace) -> bool:
    """Whether the plan cuts parameters into parts; a plan for more ranks does not on one."""
    return place.world_size > 1 and plan.get("sharding", "ddp") in FSDP


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], plan: Plan, ranks: Ranks, kind: str
) -> Sharded:
    """Spread the model over the ranks as `plan` says.

    Args:
        model: on the rank's device; for FSDP it may still be on the CPU, from where it moves block
            by block, or on the meta device.
        blocks: what FSDP shards by itself, in order.
        plan: names the strategy.
        ranks: this one and its peers.
        kind: of the device, `cpu` or `cuda`.

    Raises:
        InvalidPlanError: when the ranks cannot be arranged as the strategy needs.
    """
    place = ranks.place
    if place.world_size == 1:
        return OneDevice(model)
    strategy = str(plan.get("sharding", "ddp"))
    if strategy == "hsdp":
        return _fsdp(model, blocks, plan, ranks, _grid(ranks, kind), reshard=True)
    if strategy in FSDP:
        mesh = init_device_mesh(kind, (place.world_size,), mesh_dim_names=("shard",))
        return _fsdp(model, blocks, plan, ranks, mesh, reshard=strategy == "fsdp_zero3")
    return Replicated(model, plan, ranks)


class OneDevice:
    """A model without peers."""

    casts = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """See `Sharded`."""
        return compute_loss(self._model, batch)

    def sync_gradients(self, *, due: bool) -> None:
        """See `Sharded`."""

    def has_run_backward(self) -> None:
        """See `Sharded`."""


class _LossOf(nn.Module):
    """The loss as a module's forward pass, which is what DDP prepares its buckets around.

    So `compute_loss` gets the user's own model, of which it may use whatever it likes. With the
    wrapped model, all but a plain call would leave gradients that nobody averages.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        return compute_loss(self.model, batch)


class Replicated:
    """A model under DistributedDataParallel.

    DDP waits for the gradient of every parameter, unless it is told to search the graph of each
    step for those that the loss leaves out. That costs time, so the first steps tell whether it is
    needed. (With a static graph DDP learns by itself.)
    """

    casts = False

    def __init__(self, model: nn.Module, plan: Plan, ranks: Ranks) -> None:
        self._loss_of, self._plan, self._ranks = _LossOf(model), plan, ranks
        self.ddp = _ddp(self._loss_of, plan)
        self._waits_for_all = not _is_static(plan)
        self._num_to_watch = _WATCHED if self._waits_for_all else 0

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """See `Sharded`."""
        loss: Tensor = self.ddp(compute_loss, batch)
        if not self._num_to_watch or not torch.is_grad_enabled():
            return loss
        self._num_to_watch -= 1
        (left_out,) = self._ranks.worst(leaves_parameters_out(loss, self._loss_of))
        return self._searching(loss) if left_out else loss

    def _searching(self, loss: Tensor) -> Tensor:
        """Go on with a DDP that searches, from a forward pass that is done already."""
        due = self.ddp.require_backward_grad_sync
        self.ddp._remove_autograd_hooks()  # noqa: SLF001  two would average twice
        self.ddp = _ddp(self._loss_of, self._plan, searches=True)
        self._num_to_watch, self._waits_for_all = 0, False
        self.sync_gradients(due=due)
        again: Tensor = self.ddp(lambda model, batch: loss, None)
        return again

    def sync_gradients(self, *, due: bool) -> None:
        """See `Sharded`."""
        # What `no_sync()` does around a block; forward and backward are two calls here.
        self.ddp.require_backward_grad_sync = due

    def has_run_backward(self) -> None:
        """See `Sharded`."""
        is_due = self.ddp.require_backward_grad_sync
        if not (self._waits_for_all and is_due) or self._num_to_watch:
            return
        try:
            # DDP looks at the beginning of the next step, which the ranks that wait never reach.
            self.ddp.reducer._rebuild_buckets()  # noqa: SLF001  it was done, so it only looks
        except RuntimeError as error:
            if _LEFT_OUT_LATER not in str(error):
                raise
            raise InvalidPlanError(
                f"a step left out parameters that the first {_WATCHED} batches used, for which "
                "the other ranks wait; let compute_loss use the same parameters in every step, "
                "if only by adding 0 * parameter.sum()"
            ) from error


def leaves_parameters_out(loss: Tensor, model: nn.Module) -> bool:
    """Whether a parameter that is to be trained has no part in the loss, as far as one can see."""
    missing = {id(p) for p in model.parameters() if p.requires_grad}
    last = getattr(loss, "grad_fn", None)  # whether it is a tensor is checked later
    seen, to_come = {last}, [last] if last else []
    while to_come:
        node = to_come.pop()
        if type(node).__name__ == _HIDES_PARAMETERS:
            return False
        missing.discard(id(getattr(node, "variable", None)))
        before = {each for each, _ in node.next_functions if each} - seen
        seen |= before
        to_come.extend(before)
    return last is not None and bool(missing)


def _ddp(loss_of: _LossOf, plan: Plan, *, searches: bool = False) -> DistributedDataParallel:
    bucket_mb = int(plan.get("bucket_mb", _TORCHS_BUCKET_MB))
    ddp = DistributedDataParallel(
        loss_of,
        # Given a size, DDP makes its first bucket as large; torch's own default starts small.
        bucket_cap_mb=None if bucket_mb == _TORCHS_BUCKET_MB else bucket_mb,
        gradient_as_bucket_view=bool(plan.get("gradient_as_bucket_view", False)),
        static_graph=_is_static(plan),
        find_unused_parameters=searches,
        # Then parameters are alike, and sending them again would spoil the graph that there is.
        init_sync=not searches,
    )
    hook = _HOOKS.get(str(plan.get("comm_hook", "none")))
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def _is_static(plan: Plan) -> bool:
    """A plan for other ranks may accumulate here, with which a static graph fails."""
    return bool(plan.get("static_graph", False)) and int(plan.get("accumulation", 1)) == 1


class FullySharded:
    """A model under `fully_shard`.

    FSDP casts parameters and inputs, and no buffers. What a block computes with one, such as a
    table of angles, is fp32 again, and meets half precision under autocast only.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        assert isinstance(model, FSDPModule)
        self._fsdp: FSDPModule = model
        self._model: nn.Module = model
        self._buffers = AlignedBuffers(model, ranks)
        self.casts = not any(buffer.is_floating_point() for buffer in model.buffers())

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """See `Sharded`."""
        self._buffers.align()
        return compute_loss(self._model, batch)

    def sync_gradients(self, *, due: bool) -> None:
        """See `Sharded`."""
        self._fsdp.set_requires_gradient_sync(due)
        self._fsdp.set_is_last_backward(due)

    def has_run_backward(self) -> None:
        """See `Sharded`."""


def _check_no_hooks(model: nn.Module) -> None:
    """Check that no parameter calls code of the user's: its parts are other tensors.

    Raises:
        InvalidPlanError: naming the parameter that does.
    """
    for name, parameter in model.named_parameters():
        later = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or later:  # noqa: SLF001  nothing public tells
            raise InvalidPlanError(
                f"the parameter {name} has a hook, which would not be called for the parts that "
                "FSDP makes of it; use sharding=ddp or zero1"
            )


def _fsdp(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    plan: Plan,
    ranks: Ranks,
    mesh: DeviceMesh,
    *,
    reshard: bool,
) -> FullySharded:
    _check_no_hooks(model)
    shared = shared_across(model, blocks)
    if shared is not None:
        raise InvalidPlanError(f"{shared}; use sharding=ddp or zero1")
    for block in blocks:
        policy = _policy(plan, block.modules(), output_dtype=None)
        materialise(block, mesh.device_type)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    # The backward pass starts with the root's own parameters, so freeing them gains nothing.
    of_root = reshard and not blocks
    in_blocks = {module for block in blocks for module in block.modules()}
    rest = (module for module in model.modules() if module not in in_blocks)
    root = _policy(plan, rest, output_dtype=torch.float32)
    materialise(model, mesh.device_type)
    fully_shard(model, mesh=mesh, reshard_after_forward=of_root, mp_policy=root)
    return FullySharded(model, ranks)


def shared_across(model: nn.Module, blocks: Sequence[nn.Module]) -> str | None:
    """Return which parameter FSDP would have to cut with two parts of the model, or None.

    It cuts each block by itself and the rest as one, and a parameter belongs to one of these.
    """
    cut, modules = set(blocks), model.named_modules(remove_duplicate=False)
    parts = {f"{path}.": module for path, module in modules if module in cut}
    seen: dict[nn.Parameter, tuple[nn.Module | None, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = next((block for path, block in parts.items() if name.startswith(path)), None)
        first_part, first = seen.setdefault(parameter, (part, name))
        if part is not first_part:
            return f"{first} and {name} are one parameter, in parts that FSDP cuts by themselves"
    return None


def _policy(
    plan: Plan, modules: Iterable[nn.Module], output_dtype: torch.dtype | None
) -> MixedPrecisionPolicy:
    """Return the precision as FSDP's policy: half the traffic, gradients summed in fp32.

    Norms that keep statistics take these in one kernel with their parameters, and want both in
    fp32. FSDP casts all that it gathers together or nothing; autocast does it there.
    """
    half = _HALF.get(str(plan.get("precision", "fp32")))
    if half is None or any(map(_mixes_buffers_in, modules)):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, output_dtype=output_dtype
    )


def _mixes_buffers_in(module: nn.Module) -> bool:
    """Whether the module has both parameters and floating-point buffers of its own."""
    buffers = module.buffers(recurse=False)
    return any(True for _ in module.parameters(recurse=False)) and any(
        buffer.is_floating_point() for buffer in buffers
    )


def _grid(ranks: Ranks, kind: str) -> DeviceMesh:
    on_nodes = {int(size) for (size,) in ranks.gather(float(ranks.place.local_world_size))}
    if len(on_nodes) > 1:
        raise InvalidPlanError(
            f"hsdp needs as many ranks on each node, and here are nodes with {sorted(on_nodes)}; "
            "use fsdp_zero3"
        )
    rows, columns = grid_shape(ranks.place)
    return init_device_mesh(kind, (rows, columns), mesh_dim_names=("replicate", "shard"))


def grid_shape(place: RankPlace) -> tuple[int, int]:
    """Return how many copies there are, and among how many neighbours each is cut.

    Over several nodes each holds one copy, for the links inside a node are the fast ones. One
    node holds two copies; two ranks are too few for that and share one.

    Raises:
        InvalidPlanError: when the ranks do not divide so.
    """
    world, local = place.world_size, place.local_world_size
    if local == world:
        local = world if world < 4 else world // 2
    if world % local:
        raise InvalidPlanError(
            f"hsdp needs groups of equal size, and {world} ranks do not divide by {local}; "
            "use an even number of ranks, and as many on each node"
        )
    return world // local, local
