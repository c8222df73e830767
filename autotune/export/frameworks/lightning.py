"""Lightning: a Python file with the arguments of its Trainer and of the loader."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune.export.frameworks.deepspeed import autocast_keys, zero_keys
from autotune.export.frameworks.framework import (
    Dialect,
    Framework,
    Keys,
    Said,
    nothing,
    say,
)
from autotune.export.frameworks.in_code import in_code
from autotune.export.frameworks.python_source import indented, returned_dict, source, used
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Value

# Sections of the keys. The values in them are Python expressions; those of `_SETTINGS` and
# `_MODEL` are statements, by the knob that they come from.
_TRAINER, _STRATEGY, _LOADER = "trainer", "strategy", "loader"
_SETTINGS, _MODEL = "settings", "model"

_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
_FSDP_STRATEGIES = {
    "fsdp_zero2": "SHARD_GRAD_OP",
    "fsdp_zero3": "FULL_SHARD",
    "hsdp": "HYBRID_SHARD",
}
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_WRAP = "torch.distributed.fsdp.wrap"
_MODULES = ("functools", "torch", "torch._inductor.config", _HOOKS, _WRAP)


def _begin(training: Training) -> Keys:
    accelerator = "cpu" if training.device_kind == "cpu" else "gpu"
    return {
        _TRAINER: {"accelerator": source(accelerator), "devices": training.ranks},
        _LOADER: {},
        _STRATEGY: {},
        _SETTINGS: {},
        _MODEL: {},
    }


def _precision(value: Value, training: Training) -> Said:
    if value == "tf32":
        return say(_SETTINGS, precision='torch.set_float32_matmul_precision("high")')
    if training.sharding == "zero1":
        return say(_TRAINER, precision=source("32-true"))  # DeepSpeed's own autocast, see there
    return say(_TRAINER, precision=source(_PRECISIONS.get(str(value), "32-true")))


def _accumulation(value: Value, training: Training) -> Said:
    return say(_TRAINER, accumulate_grad_batches=value)


def _cudnn_benchmark(value: Value, training: Training) -> Said:
    return say(_TRAINER, benchmark=value)


def _threads(value: Value, training: Training) -> Said:
    return say(_SETTINGS, threads=f"torch.set_num_threads({value})")


def _shape_padding(value: Value, training: Training) -> Said:
    if value != "always":
        return Said()
    return say(_SETTINGS, shape_padding="torch._inductor.config.force_shape_pad = True")


def _compile_mode(mode: Value, training: Training) -> Said:
    if mode == "off":
        return Said()
    if not training.compiles_blocks:
        return say(_MODEL, compile_mode=f"model = torch.compile(model, mode={source(mode)})")
    names = ", ".join(map(source, training.block_classes))
    statement = (
        f"for block in model.modules():\n"
        f"    if type(block).__name__ in {{{names}}}:\n"
        f"        block.compile(mode={source(mode)})"
    )
    return say(_MODEL, compile_mode=statement)


def _memory_format(value: Value, training: Training) -> Said:
    if value != "channels_last":
        return Said()
    said = say(_MODEL, memory_format="model = model.to(memory_format=torch.channels_last)")
    return Said(
        keys=said.keys, instead="images.to(memory_format=torch.channels_last) in training_step"
    )


def _loader(argument: str) -> Any:
    """Return the rule for an argument of the DataLoader."""
    return lambda value, training: say(_LOADER, **{argument: value})


def _workers(count: Value, training: Training) -> Said:
    persistent = {"persistent_workers": True} if count else {}
    return say(_LOADER, num_workers=count, **persistent)


def _checkpointing(value: Value, training: Training) -> Said:
    if value == "full" and training.is_fsdp and training.block_classes:
        return say(_STRATEGY, activation_checkpointing_policy="set(blocks)")
    return Said(instead=in_code("activation_checkpointing", value, training))


def _sharding(value: Value, training: Training) -> Said:
    if training.ranks == 1:
        return Said()
    if value == "zero1":
        return say(_STRATEGY, config=_deepspeed_config(training))
    if not training.is_fsdp:
        return Said()
    keys = {"sharding_strategy": source(_FSDP_STRATEGIES[str(value)])}
    if value == "hsdp":
        keys["device_mesh"] = str(training.copies_and_parts)
    if training.block_classes:
        keys["auto_wrap_policy"] = "set(blocks)"
    else:
        least = training.least_parameters_of_a_part
        keys["auto_wrap_policy"] = (
            f"functools.partial({_WRAP}.size_based_auto_wrap_policy, min_num_params={least})"
        )
    said = say(_STRATEGY, **keys)
    return Said(keys=said.keys, instead="Lightning's strategy is FSDP 1, and the plan's FSDP 2")


def _deepspeed_config(training: Training) -> str:
    # Lightning's `bf16-mixed` would have DeepSpeed put the model itself into 16 bits.
    return source({"zero_optimization": zero_keys(training), **autocast_keys(training)})


def _of_ddp(argument: str) -> Any:
    """Return the rule for an argument of DistributedDataParallel."""

    def rule(value: Value, training: Training) -> Said:
        is_ddp = training.ranks > 1 and training.sharding == "ddp"
        return say(_STRATEGY, **{argument: value}) if is_ddp else Said()

    return rule


def _comm_hook(value: Value, training: Training) -> Said:
    if value == "none":
        return Said()
    return say(_STRATEGY, ddp_comm_hook=f"{_HOOKS}.{value}_compress_hook")


def _render(keys: Keys, training: Training) -> str:
    strategy = _strategy(keys[_STRATEGY], training)
    functions = [
        "def trainer_arguments(*blocks):",
        *indented(_docstring(training)),
        *indented(keys[_SETTINGS].values()),
        *indented(returned_dict({**keys[_TRAINER], **strategy})),
        "",
        "",
        "def loader_arguments():",
        '    """Return the arguments of the DataLoader for the training."""',
        *indented(returned_dict(keys[_LOADER])),
        "",
        "",
        "def prepare(model):",
        '    """Return the model to be given to `Trainer.fit`."""',
        *indented([*keys[_MODEL].values(), "return model"]),
        "",
    ]
    text = "\n".join(functions)
    imports = used(_MODULES, text)
    if strategy:
        imports.append(f"from lightning.pytorch.strategies import {_strategy_class(training)}")
    return "\n".join([*imports, "", "", text]) if imports else text


def _docstring(training: Training) -> Iterator[str]:
    if training.is_fsdp and training.block_classes:
        names = ", ".join(training.block_classes)
        yield '"""Return the arguments of `lightning.Trainer`.'
        yield ""
        yield "Args:"
        yield f"    blocks: the classes that FSDP cuts by themselves: {names}."
        yield '"""'
    else:
        yield '"""Return the arguments of `lightning.Trainer`."""'


def _strategy_class(training: Training) -> str:
    if training.is_fsdp:
        return "FSDPStrategy"
    return "DeepSpeedStrategy" if training.sharding == "zero1" else "DDPStrategy"


def _strategy(arguments: Mapping[str, Any], training: Training) -> dict[str, str]:
    if training.ranks == 1:
        return {}
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return {"strategy": f"{_strategy_class(training)}({given})"}


def _usage(file_name: str, training: Training) -> Iterable[str]:
    module = file_name.removesuffix(".py")
    blocks = ", ".join(training.block_classes) if training.is_fsdp else ""
    yield "Use it:"
    yield ""
    yield f"    from {module} import loader_arguments, prepare, trainer_arguments"
    yield ""
    yield f"    trainer = lightning.Trainer(**trainer_arguments({blocks}), max_epochs=...)"
    yield "    trainer.fit(prepare(model), DataLoader(dataset, **loader_arguments()))"


FRAMEWORK = Framework(
    name="lightning",
    made_for="Lightning 2.6",
    file_name="lightning_plan.py",
    dialects={
        "python": Dialect(
            rules={
                "precision": _precision,
                "batch_size": _loader("batch_size"),
                "accumulation": _accumulation,
                "workers": _workers,
                "prefetch": _loader("prefetch_factor"),
                "pin_memory": _loader("pin_memory"),
                "compile_mode": _compile_mode,
                "compile_scope": nothing,
                "shape_padding": _shape_padding,
                "memory_format": _memory_format,
                "cudnn_benchmark": _cudnn_benchmark,
                "threads": _threads,
                "activation_checkpointing": _checkpointing,
                "sharding": _sharding,
                "bucket_mb": _of_ddp("bucket_cap_mb"),
                "gradient_as_bucket_view": _of_ddp("gradient_as_bucket_view"),
                "static_graph": _of_ddp("static_graph"),
                "comm_hook": _comm_hook,
            },
            begin=_begin,
            render=_render,
            usage=_usage,
        )
    },
)
