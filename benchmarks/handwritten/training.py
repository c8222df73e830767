"""A training loop written by hand, as an engineer would tune one: no autotune in it.

It trains the example's own model on its own data with the settings of the command line or of a
plan file, and measures samples per second end to end.
"""

import argparse
import contextlib
import inspect
import json
import time
from pathlib import Path

import torch
import yaml
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
EVERY = {"full": 1, "selective": 1, "every-2": 2, "every-4": 4}
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


def main(example, blocks_of):
    """Train `example`, whose repeated blocks are the nn.ModuleList that `blocks_of` returns."""
    args = parse_args(example)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    apply_process_settings(args)
    torch.manual_seed(args.seed)
    step, loader = build_step(example, blocks_of, args, device), build_loader(example, args)
    if args.cuda_graph == "step":
        step = recorded(step, loader)
    samples_per_s = measure(step, loader, args, device)
    print(json.dumps({"samples_per_s": samples_per_s, "settings": vars(args)}, default=str))


def parse_args(example):
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, help="take the settings from this plan.yaml")
    parser.add_argument("--batch-size", type=int, default=example.BATCH_SIZE)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", default="off", dest="compile_mode")
    parser.add_argument("--compile-scope", default="model")
    parser.add_argument("--cuda-graph", default="off")
    parser.add_argument("--fused", action="store_const", const="fused", dest="optimizer_impl")
    parser.add_argument("--foreach", action="store_const", const="foreach", dest="optimizer_impl")
    parser.add_argument("--checkpoint", default="none", dest="activation_checkpointing")
    parser.add_argument("--channels-last", action="store_const", const="channels_last",
                        dest="memory_format")  # fmt: skip
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--pin", action="store_true", dest="pin_memory")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    if args.plan:
        parser.set_defaults(**yaml.safe_load(args.plan.read_text())["plan"])
        args = parser.parse_args()
    return args


def apply_process_settings(args):
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = args.cudnn_benchmark


def build_step(example, blocks_of, args, device):
    model = example.build_model()
    if args.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    model = model.to(device).train()
    checkpoint_blocks(model, blocks_of, args)
    compile_model(model, blocks_of, args)
    optimizer = build_optimizer(example, model, args)
    dtype = AUTOCAST.get(args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    autocast = torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()
    channels_last = args.memory_format == "channels_last"
    done = 0

    def step(batch):
        nonlocal done
        batch = [move(tensor, device, args, channels_last) for tensor in batch]
        if args.compile_mode in CUDA_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        with autocast:
            loss = example.compute_loss(model, batch)
        scaler.scale(loss / args.accumulation).backward()
        done += 1
        if done % args.accumulation == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def move(tensor, device, args, channels_last):
    if channels_last and tensor.dim() == 4:
        return tensor.to(device, non_blocking=args.pin_memory, memory_format=torch.channels_last)
    return tensor.to(device, non_blocking=args.pin_memory)


def checkpoint_blocks(model, blocks_of, args):
    mode = args.activation_checkpointing
    if mode == "none":
        return
    context = {"context_fn": keep_arithmetic} if mode == "selective" else {}
    blocks = blocks_of(model)
    for i in range(0, len(blocks), EVERY[mode]):
        blocks[i] = checkpoint_wrapper(blocks[i], **context)


def keep_arithmetic():
    aten = torch.ops.aten
    kept = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default}
    for name in ("flash", "efficient", "cudnn"):
        kept.add(getattr(aten, f"_scaled_dot_product_{name}_attention").default)

    def policy(_context, operator, *_args, **_kwargs):
        keep = operator in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def compile_model(model, blocks_of, args):
    if args.compile_mode == "off":
        return
    mode = None if args.compile_mode == "default" else args.compile_mode
    if args.compile_scope == "model":
        model.compile(mode=mode)
        return
    for block in blocks_of(model):
        block.compile(mode=mode)
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            # `layer.compile()` leaves torch's own layers as they are.
            layer.forward = torch.compile(lambda x, run=layer.forward: run(x), mode=mode)


def build_optimizer(example, model, args):
    build = getattr(example, "build_optimizer", lambda p: torch.optim.AdamW(p, lr=1e-4))
    optimizer = build(model.parameters())
    flags = {"capturable": True} if args.cuda_graph == "step" else {}
    if args.optimizer_impl not in (None, "default"):
        flags |= {"foreach": False, "fused": False, args.optimizer_impl: True}
    if not flags:
        return optimizer
    taken = inspect.signature(type(optimizer)).parameters
    arguments = {k: v for k, v in optimizer.defaults.items() if k in taken}
    return type(optimizer)(model.parameters(), **{**arguments, **flags})


def recorded(step, loader):
    """One step as a CUDA graph, as torch's notes on CUDA tell to record it."""
    batches, inputs = endless(loader), [tensor.cuda() for tensor in next(iter(loader))]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(next(batches))
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step(inputs)

    def replay(batch):
        for place, tensor in zip(inputs, batch, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()

    return replay


def build_loader(example, args):
    dataset = example.build_dataset()
    queue = {"prefetch_factor": args.prefetch, "persistent_workers": True} if args.workers else {}
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=args.pin_memory,
        collate_fn=getattr(example, "collate_fn", None),
        **queue,
    )


def measure(step, loader, args, device):
    """Samples per second over at least `--seconds`, synchronised at both ends.

    The loader's queue filled up while the model compiled. As many batches as it holds are trained
    on before the clock starts, or the queue would be measured instead of the loader.
    """
    batches = endless(loader)
    end = time.perf_counter() + args.warm_up_s
    step(next(batches))
    synchronise(device)
    while time.perf_counter() < end:
        step(next(batches))
    for _ in range(args.workers * args.prefetch + args.workers):
        step(next(batches))
    synchronise(device)
    start, samples = time.perf_counter(), 0
    while time.perf_counter() - start < args.seconds:
        step(next(batches))
        samples += args.batch_size
    synchronise(device)
    return samples / (time.perf_counter() - start)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def endless(loader):
    while True:
        yield from loader
