"""What is found out about the workload's model: its size, its blocks, its kinds of layers."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autotune.search_space.facts import WorkloadFacts
from autotune.trials.applying.blocks import block_kind, parameter_of_two_parts


def with_model_facts(
    facts: WorkloadFacts, model: nn.Module, blocks: Sequence[nn.Module]
) -> WorkloadFacts:
    """Return the facts with those of the model and its repeated blocks.

    The model must not have been moved to the meta device: that ends the sharing of parameters.
    """
    return replace(
        facts,
        num_parameters=sum(p.numel() for p in model.parameters()),
        num_blocks=len(blocks),
        num_block_kinds=max(1, len(set(map(block_kind, blocks)))),
        block_class=" and ".join(dict.fromkeys(type(b).__name__ for b in blocks)) or None,
        has_conv2d=any(isinstance(m, nn.Conv2d | nn.ConvTranspose2d) for m in model.modules()),
        has_batch_norm=any(isinstance(m, _BatchNorm) for m in model.modules()),
        shared_across=parameter_of_two_parts(model, blocks),
    )
