"""Plans of each kind, and their configurations for other tools."""

from autotune.export.configuration import configuration
from autotune.export.contents import PlanFile
from autotune.export.frameworks import FRAMEWORKS
from autotune.export.frameworks.training import Training
from autotune.search_space.plan import Plan

GPU = {
    "compile_mode": "default",
    "compile_scope": "model",
    "precision": "bf16",
    "batch_size": 64,
    "accumulation": 2,
    "workers": 4,
    "prefetch": 4,
    "pin_memory": True,
    "activation_checkpointing": "every-2",
    "optimizer_impl": "fused",
    "threads": 1,
}
IN_CODE = {
    "shape_padding": "always",
    "memory_format": "channels_last",
    "cudnn_benchmark": True,
    "attention": "flex",
}
CPU = {
    "compile_mode": "off",
    "precision": "bf16",
    "batch_size": 4,
    "workers": 1,
    "prefetch": 2,
    "optimizer_impl": "fused",
    "threads": 1,
}
DDP = {
    "sharding": "ddp",
    "bucket_mb": 100,
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "comm_hook": "bf16",
}


def training(values, *, ranks=1, **facts):
    """Return a training of a GPT of twelve blocks, unless facts say otherwise."""
    known = {"block_classes": ("Block",), "num_blocks": 12, "num_parameters": 124_000_000}
    return Training(plan=Plan.of(values), ranks=ranks, **(known | facts))


def written(name, values, *, file_name=None, ranks=1, dialect=None, **facts):
    """Return the configuration of a plan for a tool."""
    tool, of = FRAMEWORKS[name], training(values, ranks=ranks, **facts)
    file = PlanFile(plan=of.plan, ranks=ranks)
    format_name = dialect or next(iter(tool.dialects))
    return configuration(tool, of, file, format_name, file_name or tool.file_name)


def left_out(configured):
    """Return what to do about each setting that a configuration leaves out, by its knob."""
    return {one.knob: one.instead for one in configured.left_out}
