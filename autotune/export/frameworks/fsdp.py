"""FSDP in the words of accelerate, which transformers' Trainer has, too, without their prefix."""

from typing import Any

from autotune.export.frameworks.training import Training


def shards(training: Training) -> bool:
    """Whether accelerate can shard the training: without GPUs it only averages gradients."""
    return training.is_fsdp and training.device_kind != "cpu"


def fsdp_keys(training: Training) -> dict[str, Any]:
    """Return what FSDP 2 cuts and when it gathers, for a plan that shards parameters.

    Blocks are named by their class; where none are known, modules are cut by their size.
    """
    keys: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": training.sharding != "fsdp_zero2",
    }
    if training.block_classes:
        keys |= {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": list(training.block_classes),
        }
    else:
        keys |= {
            "auto_wrap_policy": "SIZE_BASED_WRAP",
            "min_num_params": training.least_parameters_of_a_part,
        }
    if training.plan.get("activation_checkpointing", "none") == "full":
        keys["activation_checkpointing"] = True
    return keys


def hybrid_keys(training: Training) -> dict[str, int]:
    """Return the sizes of the mesh of `hsdp`, by accelerate's names."""
    copies, parts = training.copies_and_parts
    return {"dp_replicate_size": copies, "dp_shard_size": parts}
