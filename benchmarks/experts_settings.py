"""What an experienced engineer would try on each workload of the zoo, half a dozen settings each.

A setting names what differs from a plain loop in fp32 without workers:

    precision         tf32, or the format of autocast
    compile           mode of torch.compile; `dynamic` for shapes that vary
    fused             the fused implementation of the workload's optimizer
    times             batch size, as a multiple of the workload's BATCH_SIZE
    workers, pin      of the loader; persistent, two batches ahead each
    channels_last     with cuDNN choosing its algorithms by trying them
    threads           of the host
"""

TF32 = {"precision": "tf32", "fused": True}
BF16 = {"precision": "bf16", "fused": True}
COMPILED = {"compile": "default"}
GRAPHS = {"compile": "reduce-overhead"}
DYNAMIC = {"compile": "default", "dynamic": True}
IMAGES = {"channels_last": True}


def loaded(workers):
    return {"workers": workers, "pin": True}


ON_GPU = {
    "causal_lm": [
        BF16 | loaded(2) | {"times": 2},
        BF16 | COMPILED | loaded(2),
        BF16 | COMPILED | loaded(2) | {"times": 2},
        BF16 | COMPILED | loaded(2) | {"times": 4},
        BF16 | COMPILED | loaded(2) | {"times": 8},
    ],
    "masked_lm": [
        BF16 | loaded(4) | {"times": 2},
        BF16 | loaded(4) | {"times": 8},
        BF16 | DYNAMIC | loaded(4) | {"times": 2},
        BF16 | DYNAMIC | loaded(4) | {"times": 4},
        BF16 | DYNAMIC | loaded(8) | {"times": 8},
    ],
    "encoder_decoder": [
        BF16 | loaded(4) | {"times": 4},
        BF16 | COMPILED | loaded(4),
        BF16 | COMPILED | loaded(4) | {"times": 2},
        BF16 | COMPILED | loaded(4) | {"times": 4},
        BF16 | COMPILED | loaded(4) | {"times": 8},
    ],
    "resnet50_jpeg": [
        BF16 | IMAGES | loaded(8) | {"times": 2},
        BF16 | IMAGES | loaded(15) | {"times": 2},
        BF16 | IMAGES | loaded(15) | {"times": 4},
        BF16 | IMAGES | loaded(15) | {"times": 2, "threads": 1},
        BF16 | IMAGES | COMPILED | loaded(15) | {"times": 2},
    ],
    "vit_augmented": [
        BF16 | loaded(15) | {"times": 2},
        BF16 | loaded(15) | {"times": 4, "threads": 1},
        BF16 | COMPILED | loaded(15),
        BF16 | COMPILED | loaded(15) | {"times": 2},
        BF16 | COMPILED | loaded(15) | {"times": 4},
    ],
    "diffusion_unet": [
        BF16 | IMAGES | loaded(2) | {"times": 4},
        BF16 | COMPILED | loaded(2) | {"times": 2},
        BF16 | IMAGES | COMPILED | loaded(2) | {"times": 2},
        BF16 | IMAGES | COMPILED | loaded(2) | {"times": 4},
        BF16 | IMAGES | COMPILED | loaded(4) | {"times": 8},
    ],
    "recommender": [
        TF32 | loaded(8),
        TF32 | loaded(15) | {"times": 2},
        TF32 | loaded(15) | {"times": 8},
        TF32 | loaded(15) | {"times": 8, "threads": 1},
        TF32 | COMPILED | loaded(15) | {"times": 8},
        BF16 | loaded(15) | {"times": 16},
    ],
    "graph_network": [
        TF32 | loaded(8) | {"times": 2},
        TF32 | loaded(15) | {"times": 4},
        TF32 | loaded(15) | {"times": 4, "threads": 1},
        BF16 | loaded(15) | {"times": 8},
        TF32 | DYNAMIC | loaded(15) | {"times": 4},
    ],
    "lstm_lm": [
        TF32 | loaded(2) | {"times": 2},
        BF16 | loaded(2),
        BF16 | loaded(2) | {"times": 4},
        BF16 | loaded(4) | {"times": 8},
        BF16 | loaded(4) | {"times": 16},
        BF16 | COMPILED | loaded(4) | {"times": 4},
    ],
    "speech_conformer": [
        BF16 | loaded(8) | {"times": 2},
        BF16 | loaded(8) | {"times": 4},
        BF16 | loaded(15) | {"times": 8},
        TF32 | loaded(15) | {"times": 4},
        BF16 | DYNAMIC | loaded(15) | {"times": 4},
    ],
    "mixture_of_experts": [
        TF32 | loaded(2) | {"times": 2},
        TF32 | loaded(2) | {"times": 4},
        TF32 | loaded(2) | {"times": 4, "threads": 1},
        BF16 | loaded(2) | {"times": 4},
        BF16 | loaded(2) | {"times": 4, "threads": 1},
        BF16 | DYNAMIC | loaded(2) | {"times": 4},
    ],
    "large_lm": [
        BF16 | loaded(2) | {"times": 4},
        BF16 | COMPILED | loaded(2),
        BF16 | COMPILED | loaded(2) | {"times": 2},
        BF16 | COMPILED | loaded(2) | {"times": 4},
        BF16 | COMPILED | loaded(2) | {"times": 8},
    ],
    "tabular_mlp": [
        TF32 | GRAPHS | loaded(4),
        TF32 | GRAPHS | loaded(8) | {"times": 4},
        TF32 | GRAPHS | loaded(15) | {"times": 16},
        TF32 | GRAPHS | loaded(15) | {"times": 64},
        TF32 | COMPILED | loaded(15) | {"times": 64},
        TF32 | loaded(15) | {"times": 64, "threads": 1},
    ],
}

_STATIC_ON_CPU = [
    {"fused": True},
    {"fused": True, "threads": 1},
    {"fused": True, "times": 4},
    {"fused": True, "workers": 1, "times": 2},
    {"precision": "bf16", "fused": True, "times": 4},
    COMPILED | {"fused": True},
    COMPILED | {"fused": True, "times": 4},
]
_VARYING_ON_CPU = [
    {"fused": True},
    {"fused": True, "times": 4},
    {"fused": True, "workers": 1, "times": 2},
    {"fused": True, "workers": 2, "times": 4},
    {"fused": True, "threads": 1, "workers": 1, "times": 4},
    DYNAMIC | {"fused": True, "times": 4},
]
_IMAGES_ON_CPU = [
    {"fused": True, "workers": 1},
    IMAGES | {"fused": True, "workers": 1, "threads": 1, "times": 2},
    {"fused": True, "workers": 2, "times": 4},
    IMAGES | {"fused": True, "workers": 1, "times": 2},
    IMAGES | {"fused": True, "workers": 2, "times": 4},
    IMAGES | COMPILED | {"fused": True, "workers": 1, "times": 4},
    IMAGES | {"precision": "bf16", "fused": True, "workers": 1, "times": 4},
]

ON_CPU = dict.fromkeys(ON_GPU, _STATIC_ON_CPU) | {
    **dict.fromkeys(
        ("masked_lm", "graph_network", "speech_conformer", "mixture_of_experts"), _VARYING_ON_CPU
    ),
    **dict.fromkeys(("resnet50_jpeg", "vit_augmented", "diffusion_unet"), _IMAGES_ON_CPU),
}


def settings_for(workload, device_kind):
    """Return the settings to try on a workload, by the stem of its file, on `cuda` or `cpu`."""
    table = ON_GPU if device_kind == "cuda" else ON_CPU
    generic = [BF16 | loaded(4), BF16 | COMPILED | loaded(4) | {"times": 2}]
    return table.get(workload, generic if device_kind == "cuda" else _STATIC_ON_CPU)
