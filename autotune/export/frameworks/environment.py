"""Environment variables: what torch, the C library and accelerate read when a script starts."""

import shlex
from collections.abc import Iterable

from autotune.export.frameworks.deepspeed import HALF_UNDER_DEEPSPEED
from autotune.export.frameworks.framework import Dialect, Framework, Keys, Said, say
from autotune.export.frameworks.fsdp import fsdp_keys, hybrid_keys, shards
from autotune.export.frameworks.in_code import KEPT_MALLOC, in_code
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value, spell

# accelerate's names, where they are not FSDP_ and the key in capitals.
_FSDP_NAMES = {"transformer_layer_cls_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}


def _begin(training: Training) -> Keys:
    return {"ACCELERATE_USE_CPU": "true"} if training.device_kind == "cpu" else {}


def _threads(value: Value, training: Training) -> Said:
    return say(OMP_NUM_THREADS=value)


def _malloc(value: Value, training: Training) -> Said:
    return say(**KEPT_MALLOC) if value == "keep" else Said()


def _precision(value: Value, training: Training) -> Said:
    if value == "fp32":
        return Said()
    if value == "tf32":
        return say(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1)
    if training.sharding == "zero1":
        return Said(instead=HALF_UNDER_DEEPSPEED)
    return say(ACCELERATE_MIXED_PRECISION=value)


def _compile_mode(mode: Value, training: Training) -> Said:
    if mode == "off":
        return Said()
    return say(ACCELERATE_DYNAMO_BACKEND="inductor", ACCELERATE_DYNAMO_MODE=mode)


def _compile_scope(scope: Value, training: Training) -> Said:
    return say(ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=spell(scope == "block"))


def _accumulation(value: Value, training: Training) -> Said:
    return say(ACCELERATE_GRADIENT_ACCUMULATION_STEPS=value)


def _checkpointing(value: Value, training: Training) -> Said:
    if value == "full" and shards(training):
        return Said()  # FSDP does it, see `fsdp_keys`
    return Said(instead=in_code("activation_checkpointing", value, training))


def _sharding(value: Value, training: Training) -> Said:
    if value == "zero1":
        return say(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_ZERO_STAGE=1)
    if not shards(training):
        return Said(instead=in_code("sharding", value, training))
    variables = {"ACCELERATE_USE_FSDP": "true"}
    for name, setting in fsdp_keys(training).items():
        text = ",".join(setting) if isinstance(setting, list) else spell(setting)
        variables[f"FSDP_{_FSDP_NAMES.get(name, name.upper())}"] = text
    if value == "hsdp":
        variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        for name, size in hybrid_keys(training).items():
            variables[f"PARALLELISM_CONFIG_{name.upper()}"] = str(size)
    return say(**variables)


def _render(keys: Keys, training: Training) -> str:
    return "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in keys.items())


def _usage(file_name: str, training: Training) -> Iterable[str]:
    yield f"Use it: . ./{file_name}, then start your script. Variables that begin with ACCELERATE,"
    yield "FSDP or PARALLELISM are read by accelerate and by the Trainer of transformers."


FRAMEWORK = Framework(
    name="env",
    made_for="torch 2.13, glibc and accelerate 1.15",
    file_name="autotune.env",
    dialects={
        "shell": Dialect(
            rules={
                "threads": _threads,
                "malloc": _malloc,
                "precision": _precision,
                "compile_mode": _compile_mode,
                "compile_scope": _compile_scope,
                "accumulation": _accumulation,
                "activation_checkpointing": _checkpointing,
                "sharding": _sharding,
            },
            begin=_begin,
            render=_render,
            usage=_usage,
        )
    },
)
