"""The family `ranks`: how the model is spread over the ranks of a trial.

ddp          each rank holds everything; gradients are averaged in buckets
zero1        the same, with the optimizer's state cut into one part per rank
fsdp_zero2   parameters too are cut into parts; they are gathered for the forward pass and
kept until the backward pass has used them
fsdp_zero3   parameters are gathered only while their block runs
hsdp         fsdp_zero3 inside of groups of ranks, with a copy of the model in each group

With parameter_offload the parts are in the memory of the host; a single rank then has all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autotune.search_space.knobs.ranks import (
    FSDP,
    LEAST_MEMORY_SHARDING,
    is_fsdp,
    offloads_parameters,
)
from autotune.search_space.plan import Plan
from autotune.trials.applying.replicated import Replicated
from autotune.trials.applying.settings import Setting
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import Ranks, begin_group_of_one
from autotune.trials.request import RankPlace
from autotune.trials.workload import ComputeLoss


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


class Sharded(Protocol):
    """A model as its sharding runs it.

    Attributes:
        casts: whether it computes in half precision by itself, and needs no autocast.
    """

    casts: bool

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """Return the loss of this rank's batch."""

    def sync_gradients(self, *, due: bool) -> None:
        """Average gradients in the next backward pass if it is due, else accumulate them."""

    def check_after_backward(self) -> None:
        """Check that the backward pass gave the gradients for which other ranks wait.

        Raises:
            InvalidPlanError: when other ranks would wait for ever for a gradient of this one.
        """


class OneDevice:
    """A model on a single rank."""

    casts = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def loss(self, compute_loss: ComputeLoss, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        return compute_loss(self._model, batch)

    def sync_gradients(self, *, due: bool) -> None:
        """Do nothing: there is no other rank."""

    def check_after_backward(self) -> None:
        """Check nothing: no other rank waits."""


def shards_parameters(plan: Plan, place: RankPlace) -> bool:
    """Whether FSDP has the parameters: on a single rank only to keep them on the host."""
    return offloads_parameters(plan) or (place.world_size > 1 and is_fsdp(plan))


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], plan: Plan, ranks: Ranks, device_kind: str
) -> Sharded:
    """Spread the model over the ranks as `plan` says.

    Args:
        model: on the rank's device; for FSDP it may still be on the CPU, from where it moves block
            by block, or on the meta device.
        blocks: what FSDP shards by itself, in order.
        plan: names the sharding.
        ranks: this one and its peers.
        device_kind: `cpu` or `cuda`.

    Raises:
        InvalidPlanError: when the ranks or the model do not allow this sharding.
    """
    place = ranks.place
    if place.world_size == 1 and not offloads_parameters(plan):
        return OneDevice(model)
    # Seconds of imports that one device need not wait for.
    from autotune.trials.applying.fully_sharded import shard_fully  # noqa: PLC0415

    sharding = str(plan.get("sharding", "ddp"))
    if place.world_size == 1:
        begin_group_of_one(device_kind)
        sharding = LEAST_MEMORY_SHARDING
    if sharding == "hsdp":
        mesh = _hybrid_mesh(ranks, device_kind)
        return shard_fully(model, blocks, plan, ranks, mesh, reshard=True)
    if sharding in FSDP:
        mesh = init_device_mesh(device_kind, (place.world_size,), mesh_dim_names=("shard",))
        return shard_fully(model, blocks, plan, ranks, mesh, reshard=sharding == "fsdp_zero3")
    return Replicated(model, plan, ranks)


def _hybrid_mesh(ranks: Ranks, device_kind: str) -> DeviceMesh:
    per_node = {int(size) for (size,) in ranks.gather(float(ranks.place.local_world_size))}
    if len(per_node) > 1:
        raise InvalidPlanError(
            f"hsdp needs as many ranks on each node, and here are nodes with {sorted(per_node)}; "
            "use fsdp_zero3"
        )
    shape = hybrid_mesh_shape(ranks.place)
    return init_device_mesh(device_kind, shape, mesh_dim_names=("replicate", "shard"))


def hybrid_mesh_shape(place: RankPlace) -> tuple[int, int]:
    """Return the number of copies of the model, and of ranks that share each copy.

    Over several nodes each node holds one copy, as links inside a node are the fast ones. A
    single node holds two copies; two or three ranks share one.

    Raises:
        InvalidPlanError: when the ranks cannot be divided into groups of equal size.
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
