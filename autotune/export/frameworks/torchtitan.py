"""torchtitan: a Python function for its `Trainer.Config`, or TOML for versions up to 0.2."""

from collections.abc import Iterable, Iterator
from typing import Any

import tomli_w

from autotune.export.frameworks.framework import (
    Dialect,
    Framework,
    Keys,
    Rule,
    Said,
    key,
    nothing,
    say,
)
from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.python_source import indented, source
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value

_AC = "activation_checkpoint"
_CLASSES = {"full": "FullAC", "selective": "SelectiveAC"}
_RESHARD = {"fsdp_zero2": "never", "fsdp_zero3": "always", "hsdp": "always"}
_TORCHTITANS_OPTIMIZERS = ("Adam", "AdamW")


def _begin(training: Training) -> Keys:
    batch = int(training.plan.get("batch_size", 1))
    return {
        "training": {
            "local_batch_size": batch,
            "global_batch_size": batch * training.accumulation * training.ranks,
        },
        "parallelism": _degrees(training),
    }


def _degrees(training: Training) -> Keys:
    copies, parts = training.ranks, 1
    if training.sharding == "hsdp":
        copies, parts = training.copies_and_parts
    elif training.is_fsdp:
        copies, parts = 1, training.ranks
    return {"data_parallel_replicate_degree": copies, "data_parallel_shard_degree": parts}


def _sharding(value: Value, training: Training) -> Said:
    if training.is_fsdp:
        return say("parallelism", fsdp_reshard_after_forward=_RESHARD[str(value)])
    return Said(instead=in_code("sharding", value, training))


def _precision(value: Value, training: Training) -> Said:
    dtype = "bfloat16" if value == "bf16" else "float32"
    keys = say("training", mixed_precision_param=dtype).keys
    if value == "fp16":
        return Said(keys=keys, instead="torchtitan has no fp16; it would train in fp32")
    return Said(
        keys=keys, instead=in_code("precision", value, training) if value == "tf32" else None
    )


def _compile_mode(mode: Value, training: Training) -> Said:
    keys = say("compile", enable=mode != "off").keys
    if mode in {"off", "default"}:
        return Said(keys=keys)
    return Said(keys=keys, instead="torchtitan compiles in the mode default")


def _compile_scope(scope: Value, training: Training) -> Said:
    return Said() if scope == "block" else Said(instead="torchtitan compiles block by block")


def _optimizer(value: Value, training: Training) -> Said:
    """Return the implementation; torchtitan's own default is the fused one."""
    if training.optimizer_class not in _TORCHTITANS_OPTIMIZERS:
        return Said(instead=f"torchtitan has no {training.optimizer_class}")
    # What torch takes by itself: it does not know the parts that FSDP makes.
    own = "for-loop" if training.is_fsdp or training.device_kind == "cpu" else "foreach"
    return say("optimizer", implementation=training.optimizer_impl or own)


def _workers(count: Value, training: Training) -> Said:
    return say("dataloader", num_workers=count, persistent_workers=bool(count))


def _checkpointing(value: Value, training: Training) -> Said:
    if value in {"none", *_CLASSES}:
        return Said(keys={_AC: value})
    keys = {_AC: "none"}
    return Said(keys=keys, instead="torchtitan checkpoints each block or none; none is set here")


def _checkpointing_in_toml(value: Value, training: Training) -> Said:
    if value == "selective":
        return say(_AC, mode="selective", selective_ac_option="op")
    if str(value).startswith("every-"):
        every = str(value).removeprefix("every-")
        return say(_AC, mode="selective", selective_ac_option=every)
    return say(_AC, mode=value)


def _cuda_graph(value: Value, training: Training) -> Said:
    keys = say("training", disable_cuda_graphs=value == "off").keys
    if value == "off":
        return Said(keys=keys)
    return Said(keys=keys, instead="torchtitan records forward and backward, not the optimizer")


_RULES: dict[str, Rule] = {
    "batch_size": nothing,
    "accumulation": nothing,
    "precision": _precision,
    "compile_mode": _compile_mode,
    "compile_scope": _compile_scope,
    "optimizer_impl": _optimizer,
    "workers": _workers,
    "prefetch": key("prefetch_factor", "dataloader"),
    "pin_memory": key("pin_memory", "dataloader"),
    "sharding": _sharding,
}


def _as_python(keys: Keys, training: Training) -> str:
    checkpointing = keys.get(_AC)
    name = _CLASSES.get(str(checkpointing))
    lines = [
        *(
            [f"from torchtitan.distributed.activation_checkpoint import {name}", "", ""]
            if name
            else []
        ),
        "def with_plan(config):",
        '    """Set the plan in a `Trainer.Config` of torchtitan, and return it."""',
        *indented(_assignments(keys)),
    ]
    if checkpointing is not None:
        lines.append(f"    config.{_AC} = {f'{name}.Config()' if name else None}")
    return "\n".join([*lines, "    return config", ""])


def _assignments(keys: Keys) -> Iterator[str]:
    for section, settings in keys.items():
        if section != _AC:
            for name, value in settings.items():
                yield f"config.{section}.{name} = {source(value)}"


def _as_toml(keys: Keys, training: Training) -> str:
    sections: dict[str, Any] = {name: dict(values) for name, values in keys.items()}
    if "dataloader" in sections:
        sections["training"]["dataloader"] = sections.pop("dataloader")
    return tomli_w.dumps(sections)


def _python_usage(file_name: str, training: Training) -> Iterable[str]:
    yield "Use it in your config registry:"
    yield ""
    yield f"    from {file_name.removesuffix('.py')} import with_plan"
    yield ""
    yield "    def tuned():"
    yield "        return with_plan(llama3_8b())"


def _toml_usage(file_name: str, training: Training) -> Iterable[str]:
    yield "For torchtitan up to 0.2.2, which read TOML; put these keys into your own file."


FRAMEWORK = Framework(
    name="torchtitan",
    made_for="torchtitan 0.3, or for TOML 0.2.2",
    file_name="torchtitan_plan.py",
    dialects={
        "python": Dialect(
            rules={
                **_RULES,
                "activation_checkpointing": _checkpointing,
                "cuda_graph": _cuda_graph,
            },
            begin=_begin,
            render=_as_python,
            usage=_python_usage,
        ),
        "toml": Dialect(
            rules={**_RULES, "activation_checkpointing": _checkpointing_in_toml},
            begin=_begin,
            render=_as_toml,
            usage=_toml_usage,
        ),
    },
)
