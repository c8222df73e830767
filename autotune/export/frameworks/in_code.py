"""What the user writes in code for a setting that a tool has no key for."""

from collections.abc import Callable

from autotune.export.frameworks.training import Training
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Value

# The values that need nothing: they are what torch and the tools do by themselves.
_BY_THEMSELVES: dict[str, Value] = {
    "compile_mode": "off",
    "compile_scope": "model",
    "shape_padding": "measured",
    "activation_memory_budget": 1.0,
    "cuda_graph": "off",
    "precision": "fp32",
    "accumulation": 1,
    "prefetch": 2,
    "workers": 0,
    "pin_memory": False,
    "copy_ahead": "off",
    "length_bucketing": False,
    "activation_checkpointing": "none",
    "activation_offload": "off",
    "parameter_offload": "off",
    "allocator": "default",
    "memory_format": "contiguous",
    "optimizer_impl": "default",
    "cudnn_benchmark": False,
    "malloc": "system",
    "sharding": "ddp",
    "bucket_mb": 25,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "comm_hook": "none",
}
_DTYPES: dict[Value, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_EVERY = {"every-2": "every second", "every-4": "every fourth", "full": "each"}
KEPT_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62)}
"""Variables with which glibc keeps freed memory; see mallopt(3)."""


def in_code(knob: str, value: Value, training: Training) -> str | None:
    """Return what to do in code for a setting; None where torch does so by itself."""
    if knob in _BY_THEMSELVES and value == _BY_THEMSELVES[knob]:
        return None
    if knob not in BY_NAME:
        return "a knob of your own; set it in your code"
    return _SENTENCES[knob](value, training)


def _compile(mode: Value, training: Training) -> str:
    if training.compiles_blocks:
        return f'block.compile(mode="{mode}") for each block'
    return f'model = torch.compile(model, mode="{mode}")'


def _precision(value: Value, training: Training) -> str:
    if value == "tf32":
        return 'torch.set_float32_matmul_precision("high")'
    if value == "fp8":
        return (
            "torchao.float8.convert_to_float8_training(model) before it is compiled, and "
            + _precision("bf16", training)
        )
    context = f"torch.autocast({training.device_kind!r}, dtype={_DTYPES[value]})"
    return f"with {context} around the forward pass" + (
        ", and torch.amp.GradScaler" if value == "fp16" else ""
    )


def _checkpointing(value: Value, training: Training) -> str:
    if value == "selective":
        return (
            "checkpoint each block with context_fn=create_selective_checkpoint_contexts "
            "(torch.utils.checkpoint), keeping products and attention"
        )
    return f"torch.utils.checkpoint.checkpoint around {_EVERY[str(value)]} block"


def _sharding(value: Value, training: Training) -> str:
    if value == "zero1":
        return "torch.distributed.optim.ZeroRedundancyOptimizer around your optimizer"
    reshard = "False" if value == "fsdp_zero2" else "True"
    mesh = ""
    if value == "hsdp":
        mesh = f", mesh=init_device_mesh({training.device_kind!r}, {training.copies_and_parts})"
    return (
        f"torch.distributed.fsdp.fully_shard(block, reshard_after_forward={reshard}{mesh}) "
        "for each block, then for the model"
    )


def _comm_hook(value: Value, training: Training) -> str:
    return f"ddp.register_comm_hook(None, default_hooks.{value}_compress_hook)"


def _as(text: str) -> Callable[[Value, Training], str]:
    """Return the sentence that has the value in the place of `{}`."""
    return lambda value, training: text.format(value)


_SENTENCES: dict[str, Callable[[Value, Training], str | None]] = {
    "compile_mode": _compile,
    "compile_scope": lambda scope, training: None,  # said with the mode
    "shape_padding": _as("torch._inductor.config.force_shape_pad = True"),
    "activation_memory_budget": _as("torch._functorch.config.activation_memory_budget = {}"),
    "cuda_graph": _as("only autotune.apply records steps"),
    "precision": _precision,
    "batch_size": _as("DataLoader(batch_size={})"),
    "accumulation": _as("step the optimizer after every {} batches, with the loss divided by it"),
    "workers": _as("DataLoader(num_workers={}, persistent_workers=True)"),
    "prefetch": _as("DataLoader(prefetch_factor={})"),
    "pin_memory": _as("DataLoader(pin_memory=True), and tensor.to(device, non_blocking=True)"),
    "copy_ahead": _as(
        "copy the next batch on a torch.cuda.Stream() of its own while the step computes"
    ),
    "length_bucketing": _as(
        "give DataLoader a sampler that sorts shuffled samples by length within groups of 50 "
        "batches"
    ),
    "activation_checkpointing": _checkpointing,
    "activation_offload": _as(
        "with torch.autograd.graph.save_on_cpu(pin_memory=True) around each block but the last"
    ),
    "parameter_offload": _as(
        "torch.distributed.fsdp.fully_shard(block, offload_policy=CPUOffloadPolicy()) for each "
        "block, then for the model"
    ),
    "allocator": _as("start with PYTORCH_ALLOC_CONF=expandable_segments:True"),
    "memory_format": _as(
        "model.to(memory_format=torch.channels_last), and the same for batches of images"
    ),
    "optimizer_impl": _as("build your optimizer with {}=True"),
    "cudnn_benchmark": _as("torch.backends.cudnn.benchmark = True"),
    "threads": _as("torch.set_num_threads({0}), or start with OMP_NUM_THREADS={0}"),
    "malloc": lambda value, training: (
        "start with " + " ".join(f"{name}={setting}" for name, setting in KEPT_MALLOC.items())
    ),
    "sharding": _sharding,
    "bucket_mb": _as("DistributedDataParallel(bucket_cap_mb={})"),
    "gradient_as_bucket_view": _as("DistributedDataParallel(gradient_as_bucket_view=True)"),
    "static_graph": _as("DistributedDataParallel(static_graph=True)"),
    "comm_hook": _comm_hook,
}
