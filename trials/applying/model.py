"""Makes the model that a plan trains: the order in which knobs change it."""

import torch
from torch import nn

from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.applying.compiler import compile_blocks, compile_model
from autotune.trials.applying.construction import construct_for_sharding, construct_on_device
from autotune.trials.applying.eight_bits import in_eight_bits
from autotune.trials.applying.layout import in_memory_format
from autotune.trials.applying.memory import checkpoint_blocks
from autotune.trials.applying.offload import offload_blocks
from autotune.trials.applying.ranks import Sharded, shard, shards_parameters
from autotune.trials.process_group import Ranks
from autotune.trials.workload import Workload


def build_model(
    workload: Workload, plan: Plan, device: torch.device, ranks: Ranks
) -> tuple[nn.Module, Sharded]:
    """Return the model under the plan, and how its sharding runs it.

    It is on its device, in training, checkpointed, sharded and compiled; the compiler itself runs
    in the first step.
    """
    model = in_memory_format(_construct(workload, plan, device, ranks), plan)
    _put_into_training(model)
    blocks = find_blocks(model, workload)
    model, blocks = in_eight_bits(model, blocks, plan, device.type)
    blocks = checkpoint_blocks(model, blocks, plan)
    compile_blocks(model, blocks, plan)
    blocks = offload_blocks(model, blocks, plan)
    sharded = shard(model, blocks, plan, ranks, device.type)
    compile_model(model, plan)
    return model, sharded


def _construct(workload: Workload, plan: Plan, device: torch.device, ranks: Ranks) -> nn.Module:
    if shards_parameters(plan, ranks.place):
        return construct_for_sharding(workload, plan, device, ranks)
    return construct_on_device(workload, plan, device)


def _put_into_training(model: nn.Module) -> None:
    """Put the model into training, except for frozen parts in evaluation, such as a teacher.

    Trainable parts in evaluation are put into training: libraries return pretrained models in
    evaluation. So are frozen modules inside of them, such as those beside an adapter. A `train`
    method of the user's own is called instead, as it knows which norms stay in evaluation.
    """
    if model.training and type(model).train is nn.Module.train:
        for child in model.children():
            if child.training or not _is_frozen(child):
                _put_into_training(child)
    else:
        model.train()


def _is_frozen(module: nn.Module) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return bool(tensors) and not any(tensor.requires_grad for tensor in tensors)
