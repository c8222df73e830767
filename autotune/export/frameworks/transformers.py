"""transformers: the arguments of its Trainer."""

from collections.abc import Iterable

from autotune.export.frameworks.deepspeed import autocast_keys, zero_keys
from autotune.export.frameworks.documents import as_json, as_yaml
from autotune.export.frameworks.framework import (
    Dialect,
    Framework,
    Keys,
    Said,
    key,
    say,
)
from autotune.export.frameworks.fsdp import fsdp_keys, shards
from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value

_OTHER_LAYERS = {"every-2": 2, "every-4": 4}
_BY_ENVIRONMENT = "by environment variables, which `autotune export --for env` writes"


def _begin(training: Training) -> Keys:
    return {"use_cpu": True} if training.device_kind == "cpu" else {}


def _compile_mode(mode: Value, training: Training) -> Said:
    if mode == "off":
        return Said()
    said = say(torch_compile=True, torch_compile_mode=mode)
    if training.plan.get("precision", "fp32") == "fp32" and training.device_kind == "cuda":
        return say(**said.keys, tf32=False)  # compiling turns it on otherwise
    return said


def _compile_scope(scope: Value, training: Training) -> Said:
    if scope == "model":
        return Said()
    return Said(instead=f"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true, {_BY_ENVIRONMENT}")


def _precision(value: Value, training: Training) -> Said:
    if value == "fp32":
        return Said()
    if training.sharding == "zero1" and value != "tf32":
        return say("deepspeed", **autocast_keys(training))
    return say(**{str(value): True})


def _workers(count: Value, training: Training) -> Said:
    persistent = {"dataloader_persistent_workers": True} if count else {}
    return say(dataloader_num_workers=count, **persistent)


def _pin_memory(value: Value, training: Training) -> Said:
    non_blocking = {"accelerator_config": {"non_blocking": True}} if value else {}
    return say(dataloader_pin_memory=value, **non_blocking)


def _length_bucketing(value: Value, training: Training) -> Said:
    return say(train_sampling_strategy="group_by_length") if value else Said()


def _checkpointing(value: Value, training: Training) -> Said:
    if value == "full" and shards(training):
        return Said()  # FSDP does it, see `fsdp_keys`
    if value == "full":
        return say(activation_checkpointing=True)
    if value in _OTHER_LAYERS:
        every = {"every_n_layers": _OTHER_LAYERS[str(value)]}
        return say(activation_checkpointing=True, activation_checkpointing_kwargs=every)
    return Said(instead=in_code("activation_checkpointing", value, training))


def _optimizer(value: Value, training: Training) -> Said:
    """Return the name of AdamW's implementation; the Trainer's own default is the fused one."""
    if training.optimizer_class == "AdamW":
        is_fused = training.optimizer_impl == "fused"
        return say(optim="adamw_torch_fused" if is_fused else "adamw_torch")
    if value == "default":
        return Said()
    return Said(
        instead=f"build {training.optimizer_class} with {value}=True, and give it to the Trainer "
        "as optimizers=(optimizer, scheduler)"
    )


def _sharding(value: Value, training: Training) -> Said:
    if value == "zero1":
        return say(deepspeed=_deepspeed_keys(training))
    if not shards(training):
        return Said(instead=in_code("sharding", value, training))
    keys = {"fsdp": True, "fsdp_config": fsdp_keys(training)}
    if value == "hsdp":
        copies, parts = training.copies_and_parts
        mesh = f"ParallelismConfig(dp_replicate_size={copies}, dp_shard_size={parts})"
        return Said(
            keys=keys,
            instead=f"TrainingArguments(parallelism_config={mesh}), or {_BY_ENVIRONMENT}",
        )
    return Said(keys=keys)


def _deepspeed_keys(training: Training) -> Keys:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": zero_keys(training),
    }


def _bucket(value: Value, training: Training) -> Said:
    return Said() if training.sharding == "zero1" else say(ddp_bucket_cap_mb=value)


def _static_graph(value: Value, training: Training) -> Said:
    return say(ddp_static_graph=value) if value else Said()


def _comm_hook(value: Value, training: Training) -> Said:
    if value == "none":
        return Said()
    return Said(
        instead="trainer.accelerator.ddp_handler = DistributedDataParallelKwargs("
        f"comm_hook=DDPCommunicationHookType.{str(value).upper()}), of accelerate"
    )


def _bucket_view(value: Value, training: Training) -> Said:
    if not value or training.sharding == "zero1":
        return Said()
    return Said(
        instead="trainer.accelerator.ddp_handler = DistributedDataParallelKwargs("
        "gradient_as_bucket_view=True), of accelerate"
    )


_RULES = {
    "batch_size": key("per_device_train_batch_size"),
    "accumulation": key("gradient_accumulation_steps"),
    "precision": _precision,
    "compile_mode": _compile_mode,
    "compile_scope": _compile_scope,
    "workers": _workers,
    "prefetch": key("dataloader_prefetch_factor"),
    "pin_memory": _pin_memory,
    "length_bucketing": _length_bucketing,
    "activation_checkpointing": _checkpointing,
    "optimizer_impl": _optimizer,
    "sharding": _sharding,
    "bucket_mb": _bucket,
    "static_graph": _static_graph,
    "gradient_as_bucket_view": _bucket_view,
    "comm_hook": _comm_hook,
}


def _usage(file_name: str, training: Training) -> Iterable[str]:
    yield "Use it in your script:"
    yield ""
    yield f'    plan = yaml.safe_load(open("{file_name}"))'
    yield "    args = TrainingArguments(output_dir=..., **plan)"
    if training.ranks > 1:
        yield ""
        yield f"It is for {training.ranks} ranks: torchrun --nproc-per-node {training.ranks}"


FRAMEWORK = Framework(
    name="transformers",
    made_for="transformers 5.23",
    file_name="training_arguments.yaml",
    dialects={
        "yaml": Dialect(rules=_RULES, begin=_begin, render=as_yaml, usage=_usage),
        "json": Dialect(
            rules=_RULES, begin=_begin, render=as_json, usage=_usage, has_comments=False
        ),
    },
)
