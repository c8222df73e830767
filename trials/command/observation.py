"""Observes a training for a few steps: what its space depends on."""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from autotune.search_space.command import ACCUMULATION_FLAGS, BATCH_FLAGS, Command, MadeLoader
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Value
from autotune.trials.applying.blocks import repeated_blocks
from autotune.trials.applying.optimizer import has_own_step, implementations
from autotune.trials.command.order import Order
from autotune.trials.command.root import is_compiled_by_user
from autotune.trials.command.training import Training
from autotune.trials.probing.loader import with_dataset_facts
from autotune.trials.probing.machine import compiler_problem, has_bf16, has_fp16
from autotune.trials.probing.model import with_model_facts
from autotune.trials.probing.optimizer import (
    gives_sparse_gradients,
    own_implementation,
    steps_with,
)
from autotune.trials.probing.source import installed
from autotune.trials.shapes import shapes_in

_STEPS = 3  # optimizer steps that are looked at
# Wrappers that cut parameters into parts.
_SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
_OF_COMPILER = (
    "compile_mode",
    "compile_scope",
    "shape_padding",
    "activation_memory_budget",
)
# Knobs that change the modules that a script calls.
_OF_MODULES = (
    *_OF_COMPILER,
    "precision",
    "memory_format",
    "activation_checkpointing",
    "activation_offload",
)
_EXPORT = "; `autotune export RUN --for accelerate` writes it for a framework that builds it"
_SHARDING = f"the script builds its model and optimizer by itself{_EXPORT}"
_UNKNOWN_BATCH = (
    "no argument is known to set it; if your command takes one, such as --batch_size=64, name it: "
    "--bind batch_size=--batch_size"
)
_SEVERAL_LOADERS = (
    "each step reads batches of several DataLoaders, and no argument is known to set theirs; "
    "--bind batch_size=--NAME names one"
)
_RECORDED = "the script's own loop runs Python in every step, which a recording would leave out"


def observe(training: Training, order: Order) -> Iterator[None]:
    """Look at a few steps, report the facts, and let the training rest."""
    batches, counter = [shapes_in(training.batch)], FlopCounterMode(display=False)
    begun = _Counts(training)
    with counter:
        yield
    counted = training.samples - begun.samples
    for _ in range(_STEPS - 2):
        batches.append(shapes_in(training.batch))
        yield
    batches.append(shapes_in(training.batch))
    taken, waited_s = training.samples - begun.samples, training.data_wait_s - begun.waited_s
    accumulation = begun.accumulation_until_now()
    assert order.hardware is not None
    batch_size = _batch_size(training, begun)
    command = _bound(order.command, training, batch_size, accumulation)
    facts = WorkloadFacts(
        command=command,
        batch_size=batch_size,
        fixed_batches=command.flag_of("batch_size") is None,
        global_batch_size=_global_batch(command, training, batch_size * accumulation),
        uneven_batches=any(shapes != batches[0] for shapes in batches),
        dataset_len=_dataset_len(training),
        compiler_problem=compiler_problem(order.hardware),
        bf16=has_bf16(order.hardware),
        fp16=has_fp16(order.hardware),
        flops_per_sample=counter.get_total_flops() / counted if counted else None,
        loader_samples_per_s=_loader_speed(training, taken, waited_s),
        world_size=training.world_size,
        own_settings=_own_settings(training),
        held=tuple(_held(training, command)),
        remarks=tuple(_remarks(training, command, accumulation)),
        imports=installed(set(sys.modules)),
        source_hash=_source_hash(order),
    )
    training.wire.send(_with_parts(facts, training))
    training.wait_to_be_killed()


class _Counts:
    """What was counted until a moment between two steps."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.samples, self.waited_s = training.samples, training.data_wait_s
        self.batches, self.calls = training.batches, training.calls
        self.backwards = training.backwards

    def accumulation_until_now(self) -> int:
        """Return the batches of a step; without a loader its backward passes.

        Several optimizers have backward passes of their own, which accumulate nothing.
        """
        training = self._training
        if training.loader is not None:
            passes = training.batches - self.batches
        else:
            passes = training.backwards - self.backwards
            passes //= max(1, len(training.optimizers_stepped))
        return max(1, passes // (_STEPS - 1))


def _with_parts(facts: WorkloadFacts, training: Training) -> WorkloadFacts:
    """Return the facts with those of the model, the optimizer and the dataset."""
    model = _model(training)
    facts = with_model_facts(facts, model, repeated_blocks(model))
    facts = _with_optimizer(facts, training, model)
    if training.loader is not None:
        facts = with_dataset_facts(facts, training.loader.dataset, seed=0)
    return facts


def _with_optimizer(facts: WorkloadFacts, training: Training, model: nn.Module) -> WorkloadFacts:
    """Return the facts with the optimizer, and the implementations that it takes."""
    optimizer = training.optimizer
    if optimizer is None:
        return replace(facts, optimizer_class="the script's own update", own_step=True)
    taken = implementations(optimizer)
    return replace(
        facts,
        optimizer_class=type(optimizer).__name__,
        optimizer_impls=tuple(name for name in taken if steps_with(optimizer, name, model)),
        own_impl=own_implementation(optimizer),
        own_step=has_own_step(optimizer),
        sparse_gradients=gives_sparse_gradients(model),
    )


def _bound(command: Command, training: Training, batch_size: int, accumulation: int) -> Command:
    """Return the command with the arguments that have the values which were seen."""
    seen: dict[str, tuple[tuple[str, ...], int]] = {"batch_size": (BATCH_FLAGS, batch_size)}
    if accumulation > 1:
        seen["accumulation"] = (ACCUMULATION_FLAGS, accumulation)
    for knob, (names, value) in seen.items():
        flags = (*names, *command.named_like(names, known=training.options))
        agreeing = (flag for flag in flags if _value(flag, command, training) == str(value))
        flag = next(agreeing, None)
        if flag is not None and command.flag_of(knob) is None:
            command = command.bound(knob, flag)
    made = _made_loader(training)
    if command.flag_of("batch_size") is None and made is not None:
        command = command.bound("batch_size", str(made))
    return command


def _made_loader(training: Training) -> MadeLoader | None:
    """Return how the script made the training's loader, or None."""
    batches = getattr(training.loader, "batch_sampler", None)
    if batches is None or training.reads_several_loaders:
        return None
    return training.made_loaders.get(batches)


def _value(flag: str, command: Command, training: Training) -> str | None:
    typed = command.value_of(flag)
    known = training.options.get(flag)
    return typed if typed is not None or known is None else str(known)


def _global_batch(command: Command, training: Training, samples: int) -> int | None:
    """Return the samples of a step, to be kept where arguments set all that they follow from."""
    is_kept = None not in (command.flag_of("batch_size"), command.flag_of("accumulation"))
    return samples * training.world_size if is_kept else None


def _model(training: Training) -> nn.Module:
    """Return the root, or the largest of several."""
    modules = [root.module for root in training.roots]
    return max(modules, key=lambda module: sum(p.numel() for p in module.parameters()))


def _batch_size(training: Training, begun: _Counts) -> int:
    """Return the samples of a batch; without a loader those of a call of the model."""
    size = getattr(training.loader, "batch_size", None)
    if training.loader is None:
        num_batches = (training.calls - begun.calls) if training.calls_model else _STEPS - 1
    else:
        num_batches = training.batches - begun.batches
    samples = training.samples - begun.samples
    return int(size or max(1, round(samples / max(1, num_batches))))


def _dataset_len(training: Training) -> int | None:
    dataset = getattr(training.loader, "dataset", None)
    try:
        return len(dataset)  # type: ignore[arg-type]
    except TypeError:
        return None


def _loader_speed(training: Training, samples: int, waited_s: float) -> float | None:
    """Return what the loader gives in the training process; with workers it is not known."""
    if training.loader is None or training.loader.num_workers or waited_s <= 0:
        return None
    return samples / waited_s


def _own_settings(training: Training) -> tuple[tuple[str, Value], ...]:
    """Return what the script sets by itself, where it is not a knob's first value."""
    own: dict[str, Value] = {"threads": torch.get_num_threads()}
    loader = training.loader
    if loader is not None:
        own["workers"] = loader.num_workers
        if loader.num_workers:
            own["prefetch"] = int(loader.prefetch_factor or 2)
        if torch.cuda.is_available():
            own["pin_memory"] = bool(loader.pin_memory)
    if training.roots[0].own_autocast is torch.bfloat16:
        own["precision"] = "bf16"
    elif training.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        own["precision"] = "tf32"
    if training.device.type == "cuda":
        own["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    ddp = training.roots[0].outermost
    if isinstance(ddp, DistributedDataParallel):
        own["bucket_mb"] = round(ddp.bucket_bytes_cap / 2**20)
        own["gradient_as_bucket_view"] = ddp.gradient_as_bucket_view
        own["static_graph"] = ddp.static_graph
    return tuple(own.items())


def _held(training: Training, command: Command) -> Iterator[tuple[str, str]]:
    """Yield the knobs that keep their value under the command, with the reasons."""
    yield "sharding", _SHARDING
    yield "parameter_offload", _SHARDING
    yield "cuda_graph", _RECORDED
    yield from _held_by_model(training)
    yield from _held_by_loader(training, command)
    if training.optimizer is None:
        yield "optimizer_impl", "the script changes its weights by itself"


def _held_by_model(training: Training) -> Iterator[tuple[str, str]]:
    root = training.roots[0]
    if root.own_autocast is not None:
        name = str(root.own_autocast).removeprefix("torch.")
        yield "precision", f"the script computes under its own autocast to {name}"
    if is_compiled_by_user(root.outermost) or _is_compiled(root.module):
        for knob in _OF_COMPILER:
            yield knob, "the script compiles its model by itself"
    if (sharded := _sharded_by(root.outermost)) is not None:
        for knob in (*_OF_MODULES, "optimizer_impl"):
            yield knob, f"the script shards its model by itself ({sharded})"
    if not training.calls_model:
        for knob in _OF_MODULES:
            yield knob, "the script calls no module that holds what it trains"


def _held_by_loader(training: Training, command: Command) -> Iterator[tuple[str, str]]:
    if command.flag_of("batch_size") is None:
        several = training.reads_several_loaders
        yield "batch_size", _SEVERAL_LOADERS if several else _UNKNOWN_BATCH
    if training.loader is None:
        for knob in ("workers", "prefetch", "pin_memory"):
            yield knob, "the training read no torch DataLoader"


def _sharded_by(model: nn.Module) -> str | None:
    """Return what cuts the model's parameters into parts, or None."""
    kinds = (kind.__name__ for module in model.modules() for kind in type(module).__mro__)
    return next((name for name in kinds if name in _SHARDED), None)


def _is_compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` was called on it or on a part of it."""
    return any(getattr(each, "_compiled_call_impl", None) for each in module.modules())


def _remarks(training: Training, command: Command, accumulation: int) -> Iterator[str]:
    names = training.optimizers_stepped
    if command.loaders is not None:
        yield (
            "no argument is known to set the batch, so plans set it in the script's own "
            f"{command.loaders}; --fix batch_size={command.loaders.batch_size} keeps it"
        )
    if training.optimizer is None:
        yield "no optimizer of torch steps, so each backward pass is counted as a step"
    if not training.calls_model:
        yield "no module is called, so only what needs no module may vary"
    if len(names) > 1:
        yield (
            f"the command steps {len(names)} optimizers ({', '.join(names)}); a step is counted "
            f"when the first of them, {names[0]}, steps"
        )
    if accumulation > 1:
        yield f"the command accumulates gradients over {accumulation} backward passes"
    if training.loader is None and training.calls_model:
        yield "no DataLoader feeds the training, so samples are those the model is called with"
    elif training.loader is None:
        yield "no DataLoader feeds the training, so each step is counted as one sample"


def _source_hash(order: Order) -> str:
    script = order.command.script
    path = Path(order.home, script)
    content = path.read_bytes() if path.is_file() else b""
    return hashlib.sha256(content + script.encode()).hexdigest()[:16]
