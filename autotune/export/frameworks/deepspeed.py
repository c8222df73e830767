"""DeepSpeed: the JSON file of `--deepspeed_config`."""

from collections.abc import Iterable
from typing import Any

from autotune.export.frameworks.documents import as_json
from autotune.export.frameworks.framework import (
    Dialect,
    Framework,
    Keys,
    Said,
    nothing,
    say,
)
from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value

# `bf16.enabled` and `fp16.enabled` put the model itself into 16 bits; a plan's precision is that
# of autocast.
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_STAGES = {"ddp": 0, "zero1": 1, "fsdp_zero2": 2, "fsdp_zero3": 3, "hsdp": 3}
_ZERO = "zero_optimization"
HALF_UNDER_DEEPSPEED = (
    "mixed_precision would put the model itself into 16 bits; autocast is in the file of "
    "`autotune export --for deepspeed`, for deepspeed_config_file"
)
"""What to do where accelerate starts DeepSpeed and a plan computes in 16 bits."""


def zero_keys(training: Training) -> dict[str, Any]:
    """Return the keys of the section `zero_optimization` for the plan's sharding."""
    keys: dict[str, Any] = {"stage": _STAGES[str(training.sharding)]}
    if training.sharding == "hsdp":
        keys["zero_hpz_partition_size"] = training.copies_and_parts[1]
    if "bucket_mb" in training.plan:
        keys["reduce_bucket_size"] = training.bucket_elements
    return keys


def autocast_keys(training: Training) -> dict[str, Any]:
    """Return the section `torch_autocast` for a plan in 16 bits; else nothing."""
    dtype = _DTYPES.get(str(training.plan.get("precision", "fp32")))
    return {"torch_autocast": {"enabled": True, "dtype": dtype}} if dtype else {}


def _begin(training: Training) -> Keys:
    return {
        "train_micro_batch_size_per_gpu": training.plan.get("batch_size", 1),
        "gradient_accumulation_steps": training.accumulation,
        _ZERO: zero_keys(training),
    }


def _precision(value: Value, training: Training) -> Said:
    if value == "tf32":
        return Said(instead=in_code("precision", value, training))
    return Said(keys=autocast_keys(training))


def _sharding(value: Value, training: Training) -> Said:
    if value == "fsdp_zero2":
        return Said(
            instead="stage 2 is the nearest: it keeps whole parameters on each rank, and FSDP "
            "parts of them between steps"
        )
    if value == "hsdp":
        return Said(
            instead="zero_hpz_partition_size is the nearest: it copies parameters for each group, "
            "and HSDP also gradients and optimizer state"
        )
    return Said()


def _of_ddp(value: Value, training: Training) -> Said:
    if not value or training.sharding != "ddp":
        return Said()
    return Said(instead="nothing: DeepSpeed averages gradients in its own way, without DDP")


def _comm_hook(value: Value, training: Training) -> Said:
    return Said() if value == "none" else say(communication_data_type=value)


def _usage(file_name: str, training: Training) -> Iterable[str]:
    return ()


FRAMEWORK = Framework(
    name="deepspeed",
    made_for="DeepSpeed 0.19",
    file_name="deepspeed.json",
    dialects={
        "json": Dialect(
            rules={
                "batch_size": nothing,
                "accumulation": nothing,
                "bucket_mb": nothing,
                "gradient_as_bucket_view": _of_ddp,
                "static_graph": _of_ddp,
                "precision": _precision,
                "sharding": _sharding,
                "comm_hook": _comm_hook,
            },
            begin=_begin,
            render=as_json,
            usage=_usage,
            has_comments=False,
        )
    },
)
