"""accelerate: the file that `accelerate launch --config_file` reads."""

from collections.abc import Iterable
from typing import Any

from autotune.export.frameworks.deepspeed import HALF_UNDER_DEEPSPEED
from autotune.export.frameworks.documents import as_json, as_yaml
from autotune.export.frameworks.framework import (
    Dialect,
    Framework,
    Keys,
    Said,
    nothing,
    say,
)
from autotune.export.frameworks.fsdp import fsdp_keys, hybrid_keys, shards
from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value

_HANDLERS = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({})])"


def _begin(training: Training) -> Keys:
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(training),
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": training.ranks,
        "use_cpu": training.device_kind == "cpu",
        "mixed_precision": "no",
    }


def _distributed_type(training: Training) -> str:
    if training.ranks == 1:
        return "NO"
    if shards(training):
        return "FSDP"
    if training.sharding == "zero1":
        return "DEEPSPEED"
    return "MULTI_CPU" if training.device_kind == "cpu" else "MULTI_GPU"


def _precision(value: Value, training: Training) -> Said:
    if value in {"bf16", "fp16"} and training.sharding == "zero1":
        return Said(instead=HALF_UNDER_DEEPSPEED)
    if value in {"bf16", "fp16"}:
        return say(mixed_precision=value)
    return Said(instead=in_code("precision", value, training))


def _compile_mode(mode: Value, training: Training) -> Said:
    if mode == "off":
        return Said()
    keys: dict[str, Any] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode}
    if training.compiles_blocks:
        keys["dynamo_use_regional_compilation"] = True
    return say(dynamo_config=keys)


def _accumulation(value: Value, training: Training) -> Said:
    if value == 1:
        return Said()
    keys = {}
    if training.sharding == "zero1":
        keys = {"deepspeed_config": {"gradient_accumulation_steps": value}}
    return Said(keys=keys, instead=f"Accelerator(gradient_accumulation_steps={value})")


def _checkpointing(value: Value, training: Training) -> Said:
    if value == "full" and shards(training):
        return Said()  # FSDP does it, see `fsdp_keys`
    return Said(instead=in_code("activation_checkpointing", value, training))


def _sharding(value: Value, training: Training) -> Said:
    if value == "zero1":
        return say(deepspeed_config={"zero_stage": 1})
    if not shards(training):
        return Said(instead=in_code("sharding", value, training))
    keys: dict[str, Any] = {"fsdp_config": _prefixed("fsdp_", _one_text(fsdp_keys(training)))}
    if value == "hsdp":
        keys["parallelism_config"] = _prefixed("parallelism_config_", hybrid_keys(training))
    return say(**keys)


def _one_text(keys: Keys) -> Keys:
    """Return the keys with lists as accelerate's files have them: names between commas."""
    return {k: ",".join(v) if isinstance(v, list) else v for k, v in keys.items()}


def _prefixed(prefix: str, keys: Keys) -> Keys:
    return {f"{prefix}{name}": value for name, value in keys.items()}


def _of_ddp(argument: str, by_itself: Value) -> Any:
    """Return the rule for an argument of DDP, which accelerate takes in code."""

    def rule(value: Value, training: Training) -> Said:
        if value == by_itself or training.sharding == "zero1":
            return Said()
        return Said(instead=_HANDLERS.format(f"{argument}={value}"))

    return rule


def _comm_hook(value: Value, training: Training) -> Said:
    if value == "none":
        return Said()
    hook = f"comm_hook=DDPCommunicationHookType.{str(value).upper()}"
    return Said(instead=_HANDLERS.format(hook))


def _threads(value: Value, training: Training) -> Said:
    return Said(instead=f"accelerate launch --num_cpu_threads_per_process {value}")


_RULES = {
    "precision": _precision,
    "compile_mode": _compile_mode,
    "compile_scope": nothing,
    "accumulation": _accumulation,
    "activation_checkpointing": _checkpointing,
    "sharding": _sharding,
    "bucket_mb": _of_ddp("bucket_cap_mb", 25),
    "gradient_as_bucket_view": _of_ddp("gradient_as_bucket_view", by_itself=False),
    "static_graph": _of_ddp("static_graph", by_itself=False),
    "comm_hook": _comm_hook,
    "threads": _threads,
}


def _usage(file_name: str, training: Training) -> Iterable[str]:
    yield f"Use it: accelerate launch --config_file {file_name} train.py"
    if training.device_kind == "cpu" and training.ranks > 1:
        yield "Without MPI that starts a single process on CPUs. For several, read the variables"
        yield "of `autotune export --for env`, then start your script with"
        yield f"    torchrun --nproc-per-node {training.ranks} train.py"


FRAMEWORK = Framework(
    name="accelerate",
    made_for="accelerate 1.15",
    file_name="accelerate.yaml",
    dialects={
        "yaml": Dialect(rules=_RULES, begin=_begin, render=as_yaml, usage=_usage),
        "json": Dialect(
            rules=_RULES, begin=_begin, render=as_json, usage=_usage, has_comments=False
        ),
    },
)
