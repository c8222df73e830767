"""Trains one workload by a plain PyTorch loop under one setting and prints its speed as JSON.

    python benchmarks/experts_loop.py FILE --setting '{"precision": "bf16"}' --seconds 5

See experts_settings.py for what a setting may name. There is no autotune in it.
"""

import argparse
import contextlib
import importlib.util
import inspect
import itertools
import json
import math
import platform
import re
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

PREFETCH = 2
WARM_UP_S, MAX_WARM_UP_S, WARM_UP_STEPS = 1.5, 20.0, 8
MAX_DRAIN_S = 6.0
WINDOW_S, MIN_WINDOWS, TARGET = 0.5, 5, 0.01
AUTOCAST = {"bf16": torch.bfloat16}


def main():
    args = parse_args()
    begin = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    apply_process_settings(args.setting)
    torch.manual_seed(0)
    workload = load(args.file)
    batch_size, accumulation = batch_of(workload, args.setting)
    batches = endless(build_loader(workload, args.setting, batch_size))
    step = build_step(workload, args.setting, device, accumulation)
    build_s = time.perf_counter() - begin
    first_step_s = warm_up(step, batches, device)
    drain(step, batches, args.setting, device)
    measured = measure(step, batches, batch_size, args.seconds, device)
    costs = {"build_s": build_s, "first_step_s": first_step_s, "batch_size": batch_size}
    print(json.dumps({**measured, **costs, **machine(device)}))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--setting", type=json.loads, default={})
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, at most")
    return parser.parse_args()


def machine(device):
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else processor_name(),
        "torch": torch.__version__,
        "peak_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }


def processor_name():
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def apply_process_settings(setting):
    if "threads" in setting:
        torch.set_num_threads(setting["threads"])
    if setting.get("precision") == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = setting.get("channels_last", False)


def load(path):
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def batch_of(workload, setting):
    """Return the samples of a micro-batch, and how many of them make a step of the optimizer."""
    batch_size = getattr(workload, "BATCH_SIZE", 32) * setting.get("times", 1)
    whole = getattr(workload, "GLOBAL_BATCH_SIZE", batch_size)
    if whole % batch_size:
        sys.exit(f"batch {batch_size} does not divide GLOBAL_BATCH_SIZE {whole}")
    return batch_size, whole // batch_size


def build_loader(workload, setting, batch_size):
    dataset = workload.build_dataset()
    workers = setting.get("workers", 0)
    queue = {"prefetch_factor": PREFETCH, "persistent_workers": True} if workers else {}
    order = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    options = {
        "batch_size": batch_size,
        "drop_last": True,
        "num_workers": workers,
        "pin_memory": setting.get("pin", False),
        "collate_fn": getattr(workload, "collate_fn", None),
        **queue,
        **order,
    }
    return getattr(workload, "build_dataloader", DataLoader)(dataset, **options)


def endless(loader):
    while True:
        yield from loader


def build_step(workload, setting, device, accumulation):
    model = build_model(workload, setting, device)
    optimizer = build_optimizer(workload, model, fused=setting.get("fused", False))
    dtype = AUTOCAST.get(setting.get("precision"))
    autocast = torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()
    has_graphs = setting.get("compile") == "reduce-overhead"
    move = mover(device, setting)

    def step(batches):
        """Train on one batch of the optimizer's, from as many of the loader's as it takes."""
        for batch in itertools.islice(batches, accumulation):
            if has_graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with autocast:
                loss = workload.compute_loss(model, move(batch))
            (loss / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step.accumulation = accumulation
    return step


def build_model(workload, setting, device):
    model = workload.build_model().to(device).train()
    if setting.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    if "compile" in setting:
        mode = None if setting["compile"] == "default" else setting["compile"]
        model.compile(mode=mode, dynamic=setting.get("dynamic"))
    return model


def build_optimizer(workload, model, *, fused):
    build = getattr(workload, "build_optimizer", lambda p: torch.optim.AdamW(p, lr=1e-4))
    optimizer = build(model.parameters())
    taken = inspect.signature(type(optimizer)).parameters
    if not fused or "fused" not in taken:
        return optimizer
    arguments = {key: value for key, value in optimizer.defaults.items() if key in taken}
    return type(optimizer)(model.parameters(), **{**arguments, "foreach": False, "fused": True})


def mover(device, setting):
    """Return what copies a batch to the device: tensors in tuples, lists and dicts, or `to`."""
    asynchronous = setting.get("pin", False)
    images = setting.get("channels_last", False)

    def move(value):
        if isinstance(value, torch.Tensor):
            is_image = images and value.dim() == 4
            layout = torch.channels_last if is_image else torch.preserve_format
            return value.to(device, non_blocking=asynchronous, memory_format=layout)
        if isinstance(value, dict):
            return {key: move(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(move(entry) for entry in value)
        return value.to(device, non_blocking=asynchronous) if hasattr(value, "to") else value

    return move


def warm_up(step, batches, device):
    """Step until nothing is compiled any more; return the seconds of the first step."""
    begin, times = time.perf_counter(), []
    while not is_warm(times, time.perf_counter() - begin):
        start = time.perf_counter()
        loss = step(batches)
        synchronise(device)
        times.append(time.perf_counter() - start)
    if not math.isfinite(float(loss.detach())):
        sys.exit(f"the loss is {float(loss.detach())}")
    return times[0]


def is_warm(times, elapsed_s):
    """Whether the last five steps after the first took about as long as each other."""
    recent = times[1:][-5:]
    if len(recent) < 3:
        return False
    since_first_s = elapsed_s - times[0]
    if since_first_s > MAX_WARM_UP_S:
        return True
    settled = max(recent) < 3 * statistics.median(recent)
    return settled and since_first_s > WARM_UP_S and len(times) > WARM_UP_STEPS


def drain(step, batches, setting, device):
    """Train on as many batches as the loader's queue holds: it filled while the model compiled."""
    end = time.perf_counter() + MAX_DRAIN_S
    for _ in range(math.ceil(setting.get("workers", 0) * (PREFETCH + 1) / step.accumulation)):
        step(batches)
        if time.perf_counter() > end:
            break
    synchronise(device)


def measure(step, batches, batch_size, seconds, device):
    """Return samples per second, end to end, over windows that are synchronised at both ends."""
    speeds, steps, samples = [], 1, 0
    begin = start = time.perf_counter()
    while start - begin < seconds and not is_enough(speeds):
        end_s, count = 0.0, 0
        while end_s < WINDOW_S:
            for _ in range(steps):
                step(batches)
            synchronise(device)
            count += steps
            end_s = time.perf_counter() - start
            steps = max(steps, math.ceil(count * WINDOW_S / end_s)) if end_s < WINDOW_S else steps
        size = count * batch_size * step.accumulation
        speeds.append(size / end_s)
        samples, start = samples + size, start + end_s
    spread = statistics.pstdev(speeds) / statistics.mean(speeds)
    return {"throughput": samples / (start - begin), "spread": spread, "windows": len(speeds)}


def is_enough(speeds):
    """Whether the standard error of the mean is within the target."""
    if len(speeds) < MIN_WINDOWS:
        return False
    error = statistics.stdev(speeds) / math.sqrt(len(speeds))
    return error < TARGET / 2 * statistics.mean(speeds)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
