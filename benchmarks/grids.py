"""The plans to record of each example: the union of a few products of knob values.

A knob that a product does not name keeps its baseline value; values that a machine does not offer
are left out.
"""

import itertools
import sys

BOTH = (False, True)

QUICK = {"optimizer_impl": ("fused",), "pin_memory": (True,), "threads": (1,)}
CUDA = {
    "gpt": [
        {
            "precision": ("fp32", "tf32", "bf16", "fp16"),
            "batch_size": (8, 16, 32, 64),
            "optimizer_impl": ("default", "fused"),
            "pin_memory": BOTH,
        },
        {
            "precision": ("tf32", "bf16"),
            "batch_size": (128,),
            "optimizer_impl": ("default", "fused"),
            "pin_memory": (True,),
        },
        {
            "compile_mode": ("default",),
            "precision": ("fp32", "tf32", "bf16"),
            "batch_size": (8, 16, 32, 64),
            "optimizer_impl": ("default", "fused"),
        },
        {
            "compile_mode": ("off", "default", "reduce-overhead"),
            "cuda_graph": ("off", "step"),
            "precision": ("bf16",),
            "batch_size": (16, 32, 64),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
        },
        {
            "compile_mode": ("default",),
            "precision": ("tf32", "bf16"),
            "batch_size": (16, 64, 128),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
        },
        {
            "compile_mode": ("default",),
            "precision": ("bf16",),
            "batch_size": (16, 64),
            "optimizer_impl": ("default", "fused"),
        },
        {"compile_mode": ("default",), "precision": ("fp32",)},
        {
            "precision": ("bf16", "fp16"),
            "batch_size": (64, 128),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
            "activation_checkpointing": ("none", "selective", "every-2", "full"),
        },
        {
            "compile_mode": ("default",),
            "compile_scope": ("model", "block"),
            "precision": ("bf16",),
            "batch_size": (64, 128),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
            "activation_checkpointing": ("none", "full"),
        },
        {"precision": ("bf16",), "batch_size": (16, 64), "workers": (0, 4), **QUICK},
        {
            "compile_mode": ("default",),
            "precision": ("bf16",),
            "batch_size": (64,),
            "workers": (0, 4),
            **QUICK,
        },
        {
            "compile_mode": ("max-autotune-no-cudagraphs",),
            "precision": ("bf16",),
            "batch_size": (64,),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
        },
        {
            "compile_mode": ("default",),
            "compile_scope": ("block",),
            "precision": ("fp32", "tf32", "bf16", "fp16"),
            "batch_size": (16, 32, 64),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
            "threads": (16, 1),
        },
        {
            "compile_mode": ("default", "reduce-overhead"),
            "precision": ("tf32", "bf16", "fp16"),
            "batch_size": (16, 64),
            **QUICK,
        },
        {
            "precision": ("fp32", "tf32", "bf16", "fp16"),
            "batch_size": (16, 64),
            "optimizer_impl": ("default", "fused"),
            "pin_memory": (True,),
            "threads": (1,),
        },
        {
            "precision": ("tf32", "bf16", "fp16"),
            "batch_size": (16, 64, 128),
            "workers": (2, 8),
            **QUICK,
        },
        {
            "precision": ("fp32", "tf32"),
            "batch_size": (16, 64),
            "optimizer_impl": ("fused",),
            "pin_memory": (True,),
            "activation_checkpointing": ("selective", "every-2", "full"),
        },
    ],
    "deep_mlp": [
        {
            "cuda_graph": ("off", "step"),
            "precision": ("fp32", "bf16"),
            "batch_size": (128, 512, 2048, 8192),
            "optimizer_impl": ("default", "fused"),
            "pin_memory": BOTH,
            "threads": (16, 1),
        },
        {
            "compile_mode": ("off", "default", "reduce-overhead"),
            "cuda_graph": ("off", "step"),
            "precision": ("fp32", "tf32", "bf16"),
            "batch_size": (128, 2048, 8192),
            **QUICK,
        },
        {
            "compile_mode": ("default", "reduce-overhead"),
            "cuda_graph": ("off", "step"),
            "precision": ("fp32", "bf16"),
            "batch_size": (128, 2048),
            "pin_memory": (True,),
            "threads": (1,),
        },
        {"compile_mode": ("default", "reduce-overhead"), "batch_size": (128, 512)},
        {
            "compile_mode": ("default",),
            "compile_scope": ("block",),
            "precision": ("fp32", "bf16"),
            "batch_size": (128, 8192),
            **QUICK,
        },
        {
            "compile_mode": ("max-autotune",),
            "precision": ("bf16",),
            "batch_size": (128, 8192),
            **QUICK,
        },
        {
            "cuda_graph": ("off", "step"),
            "precision": ("bf16",),
            "batch_size": (128, 2048, 8192),
            "workers": (2, 8),
            **QUICK,
        },
    ],
    "digits_cnn": [
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (32, 64, 128, 512),
            "memory_format": ("contiguous", "channels_last"),
            "optimizer_impl": ("default", "fused"),
            "workers": (0, 8, 16),
        },
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (32, 64, 128),
            "workers": (8, 16),
            "pin_memory": (True,),
            "threads": (16, 1),
        },
        {"batch_size": (64, 128), "workers": (4, 8, 16), "prefetch": (2, 4, 8)},
        {
            "batch_size": (32, 64, 128),
            "workers": (0, 16),
            "memory_format": ("contiguous", "channels_last"),
            "cudnn_benchmark": BOTH,
        },
        {
            "compile_mode": ("default", "reduce-overhead"),
            "precision": ("fp32", "bf16"),
            "batch_size": (32, 128),
            "memory_format": ("contiguous", "channels_last"),
            "workers": (0, 16),
        },
        {"compile_mode": ("max-autotune",), "batch_size": (64,), "workers": (16,)},
        {
            "precision": ("tf32", "fp16"),
            "batch_size": (32, 64, 128),
            "optimizer_impl": ("default", "fused"),
            "workers": (0, 16),
        },
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (256,),
            "memory_format": ("contiguous", "channels_last"),
            "workers": (0, 8, 16),
        },
    ],
}
CPU = {
    "gpt": [
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (4, 8, 16, 32, 64, 128),
            "optimizer_impl": ("default", "foreach", "fused"),
            "workers": (0, 1),
        },
        {
            "compile_mode": ("default",),
            "compile_scope": ("model", "block"),
            "precision": ("fp32", "bf16"),
            "batch_size": (4, 16, 64),
            "optimizer_impl": ("default", "fused"),
        },
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (16, 64),
            "optimizer_impl": ("fused",),
            "activation_checkpointing": ("selective", "full"),
        },
    ],
    "deep_mlp": [
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
            "optimizer_impl": ("default", "foreach", "fused"),
            "workers": (0, 1),
        },
        {
            "compile_mode": ("default",),
            "compile_scope": ("model", "block"),
            "precision": ("fp32", "bf16"),
            "batch_size": (128, 512, 2048, 8192),
            "optimizer_impl": ("default", "fused"),
        },
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (128, 2048),
            "optimizer_impl": ("fused",),
            "activation_checkpointing": ("selective", "full"),
        },
    ],
    "digits_cnn": [
        {
            "precision": ("fp32", "bf16"),
            "batch_size": (8, 16, 32, 64, 128, 256, 512),
            "optimizer_impl": ("default", "fused"),
            "memory_format": ("contiguous", "channels_last"),
            "workers": (0, 1, 2),
        },
        {
            "compile_mode": ("default",),
            "precision": ("fp32", "bf16"),
            "batch_size": (32, 128, 512),
            "memory_format": ("contiguous", "channels_last"),
            "workers": (0, 2),
        },
        {
            "batch_size": (32, 128),
            "workers": (1, 2),
            "prefetch": (2, 4, 8),
            "optimizer_impl": ("default", "foreach", "fused"),
        },
    ],
}
GRIDS = {"cuda": CUDA, "cpu": CPU}


def plans_of(example, space):
    """Return the distinct plans to record, with the baseline."""
    kind = space.site.hardware.device_kind
    if example not in GRIDS[kind]:
        sys.exit(f"benchmarks/grids.py has no grid of {example} for a {kind} device")
    products = GRIDS[kind][example]
    plans = [plan for product in products for plan in _product(product, space)]
    return list(dict.fromkeys([space.baseline, *plans]))


def _product(values, space):
    offered = {name: _offered(name, listed, space) for name, listed in values.items()}
    for chosen in itertools.product(*offered.values()):
        plan = space.possible(dict(zip(offered, chosen, strict=True)))
        if plan is not None:
            yield plan


def _offered(name, listed, space):
    values = space.by_name[name].values
    return [value for value in listed if value in values] or values[:1]
