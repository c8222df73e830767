"""Looks at a workload once, in a process of its own, and tells what the space depends on.

Nothing here trains.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from autotune.errors import WorkloadError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import batch_does_not_divide
from autotune.search_space.plan import Plan
from autotune.trials.applying.batch import moved
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.applying.loader import (
    Feed,
    build_loader,
    dataset_len,
    fixed_batches,
    open_file,
    repeats_in_workers,
)
from autotune.trials.applying.optimizer import (
    build_optimizer,
    gives_sparse_gradients,
    has_own_step,
    rebuild_problem,
    recordable,
    recordable_only_fused,
    steps_with,
    takes,
    with_implementation,
)
from autotune.trials.applying.ranks import shared_across
from autotune.trials.failure import one_line, user_traceback
from autotune.trials.forkable import is_forkable
from autotune.trials.probing.products import UnevenProducts
from autotune.trials.probing.varying import varies
from autotune.trials.request import ProbeRequest, Rejection
from autotune.trials.seeding import seed_all
from autotune.trials.workload import (
    Workload,
    default_batch_size,
    load_workload,
    own_modules,
)

_LOADER_PROBE_S = 0.5
_COMPARED, _FEW = 4, 2  # batches, and samples of each where values decide
_PASSES = 16  # over those batches in turn: chance may decide, too


def probe(path: Path, hardware: Hardware, seed: int) -> WorkloadFacts:
    """Load the workload and return what it is.

    Raises:
        WorkloadError: when it breaks its contract or raises.
    """
    seed_all(seed)
    before = set(sys.modules)
    workload = load_workload(path)
    forkable, imports = is_forkable(), _installed(set(sys.modules) - before)
    dataset = workload.build_dataset()
    num_samples = dataset_len(dataset)
    batch_size, remarks = _batch_size(workload, num_samples)
    plan = Plan.of({"batch_size": batch_size, **{k: v[0] for k, v in workload.knobs.items()}})
    model = workload.model(plan.values)
    optimizer = build_optimizer(workload, plan, model)
    blocks = find_blocks(model, workload)
    shared = shared_across(model, blocks)  # on the meta device they are no longer one
    impls, sparse = _implementations(optimizer, model), gives_sparse_gradients(model)
    num_parameters = sum(p.numel() for p in model.parameters())
    has_conv2d = any(isinstance(m, nn.Conv2d) for m in model.modules())
    has_batch_norm = any(isinstance(m, _BatchNorm) for m in model.modules())
    batches = _look_at_batches(workload, plan, seed, model)
    if batches.fixed:
        counts = f"each counts as {batch_size} samples: set BATCH_SIZE to what it holds"
        remarks += (f"the loader makes its own batches, so batch_size stays; {counts}",)
    if batches.vary:
        impls = tuple(n for n in impls if steps_with(optimizer, n, model, varies=True))
    return WorkloadFacts(
        batch_size=batch_size,
        global_batch_size=workload.global_batch_size,
        dataset_len=num_samples,
        fixed_batches=batches.fixed,
        open_file=open_file(dataset),
        repeats_in_workers=repeats_in_workers(dataset, seed),
        num_parameters=num_parameters,
        num_blocks=len(blocks),
        block_class=" and ".join(dict.fromkeys(type(b).__name__ for b in blocks)) or None,
        has_conv2d=has_conv2d,
        has_batch_norm=has_batch_norm,
        optimizer_class=type(optimizer).__name__,
        optimizer_impls=impls,
        recordable=takes(partial(recordable, optimizer)),
        recordable_only_fused="fused" in impls and recordable_only_fused(optimizer),
        rebuild_problem=rebuild_problem(optimizer),
        own_step=has_own_step(optimizer),
        shared_across=shared,
        sparse_gradients=sparse,
        varies=batches.vary,
        compiler_problem=compiler_problem(hardware),
        bf16=hardware.capability is None or hardware.capability >= (8, 0),
        fp16=hardware.capability is not None and hardware.capability >= (7, 0),
        user_knobs=tuple(workload.knobs.items()),
        tokens_per_sample=workload.tokens_per_sample,
        flops_per_sample=batches.flops_per_sample,
        uneven_share=batches.uneven_share,
        loader_samples_per_s=batches.samples_per_s,
        loader_busy_share=batches.busy_share,
        imports=imports if forkable else (),
        source_hash=_source_hash(path),
        remarks=remarks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    """What the batches of a workload show.

    Attributes:
        fixed: they hold what they hold, whatever size is asked for.
        vary: which modules run differs from one to the next.
        flops_per_sample: of a training step; None: unknown.
        uneven_share: of these, in products that the compiler may pad; None: unknown.
        samples_per_s: of the loader alone.
        busy_share: part of the time that it keeps a core busy.
    """

    fixed: bool
    vary: bool
    flops_per_sample: float | None
    uneven_share: float | None
    samples_per_s: float
    busy_share: float


def _look_at_batches(workload: Workload, plan: Plan, seed: int, model: nn.Module) -> _Batches:
    """Read some batches; the model has no values afterwards."""
    batch_size, vary = int(plan["batch_size"]), False
    feed = Feed(build_loader(workload, plan, seed))
    batch = feed.next()
    fixed = fixed_batches(workload, plan, seed, feed.loader, batch)
    flops, uneven = _flops(workload, model, batch)
    with contextlib.suppress(Exception), torch.no_grad():  # a trial will show what raises
        if flops is None:
            vary = _varies_with_values(workload, plan, seed)
        else:
            vary = _varies_with_shapes(workload, model, batch, feed)
    samples_per_s, busy_share = _loader_speed(feed, batch_size)
    return _Batches(
        fixed=fixed,
        vary=vary,
        flops_per_sample=flops and flops / batch_size,
        uneven_share=uneven / flops if flops else None,
        samples_per_s=samples_per_s,
        busy_share=busy_share,
    )


def compiler_problem(hardware: Hardware) -> str | None:
    """Return why torch.compile cannot work on this machine, None when it can."""
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h is missing; install the Python headers (python3-dev)"
    compiler = os.environ.get("CXX") or "g++"
    if not (shutil.which(compiler) or shutil.which("clang++")):
        return "no C++ compiler found; install g++"
    if hardware.device_kind == "cpu":
        return None
    if hardware.capability is not None and hardware.capability < (7, 0):
        return f"Triton needs compute capability 7.0, this device has {hardware.capability}"
    if importlib.util.find_spec("triton") is None:
        return "the triton package is missing; install it as your torch build asks"
    return None


def _batch_size(workload: Workload, num_samples: int | None) -> tuple[int, tuple[str, ...]]:
    name, total = workload.path.name, workload.global_batch_size
    if num_samples == 0:
        raise WorkloadError(f"{name}: the dataset is empty: len(build_dataset()) is 0")
    size = workload.batch_size
    if size is None:
        size = default_batch_size(total, limit=num_samples or 0)
        return size, (f"{name} sets no BATCH_SIZE; the baseline uses {size}",)
    if num_samples is not None and size > num_samples:
        raise WorkloadError(
            f"{name}: the dataset has {num_samples} samples, fewer than BATCH_SIZE={size}; "
            f"use {num_samples} or less"
        )
    if total is not None and total % size:
        raise WorkloadError(f"{name}: {batch_does_not_divide('BATCH_SIZE', size, total)}")
    return size, ()


def _source_hash(path: Path) -> str:
    """Hash the workload's file and every module it imported from its own folder."""
    digest = hashlib.sha256()
    for file in sorted({path.resolve(), *own_modules(path).values()}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _installed(names: set[str]) -> tuple[str, ...]:
    """Return the installed packages and their direct modules among the names of modules."""
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    near = [name for name in names if name.count(".") <= 1 and "site-packages" in files[name]]
    return tuple(sorted(near))


def _implementations(optimizer: Optimizer, model: nn.Module) -> tuple[str, ...]:
    names = ("foreach", "fused")
    built = (n for n in names if takes(partial(with_implementation, optimizer, n)))
    return tuple(n for n in built if steps_with(optimizer, n, model))


def _loader_speed(feed: Feed, batch_size: int) -> tuple[float, float]:
    """Return samples per second, and the part of the time that a core was busy."""
    start, computed = time.perf_counter(), time.process_time()
    count, took_s = 0, 0.0
    while took_s < _LOADER_PROBE_S:
        feed.next()
        count, took_s = count + 1, time.perf_counter() - start
    return count * batch_size / took_s, min(1.0, (time.process_time() - computed) / took_s)


def _flops(workload: Workload, model: nn.Module, batch: Any) -> tuple[float | None, float]:
    """Count one training step on the meta device, which computes shapes only.

    Models that look at values cannot run there; their count stays unknown.

    Returns:
        All FLOPs, and those in products of uneven sides.
    """
    try:
        # The outer mode sees what the inner one takes operators apart into.
        with UnevenProducts(model) as uneven, FlopCounterMode(display=False) as counter:
            workload.compute_loss(model.to("meta"), _to_meta(batch)).backward()
    except Exception:  # noqa: BLE001  whatever the user's code makes of tensors without values
        return None, 0.0
    return float(counter.get_total_flops()), uneven.flops


def _varies_with_shapes(workload: Workload, model: nn.Module, batch: Any, feed: Feed) -> bool:
    """Whether what runs depends on shapes or on chance, by a model on the meta device."""
    batches = (batch if number == 0 else feed.next() for number in range(_COMPARED))
    passes = itertools.islice(itertools.cycle(map(_to_meta, batches)), _PASSES)
    return varies(model, partial(workload.compute_loss, model), passes)


def _varies_with_values(workload: Workload, plan: Plan, seed: int) -> bool:
    """Whether what runs depends on values, by a few samples at a time."""
    few = Plan.of({**plan.values, "batch_size": min(_FEW, int(plan["batch_size"]))})
    feed = Feed(build_loader(workload, few, seed))
    model = workload.model(plan.values).train()
    batches = (feed.next() for _ in range(_COMPARED))
    passes = itertools.islice(itertools.cycle(batches), _PASSES)
    return varies(model, partial(workload.compute_loss, model), passes)


def _to_meta(batch: Any) -> Any:
    return moved(batch, torch.device("meta"), lambda tensor: tensor.to("meta"))


def answer(request: ProbeRequest) -> Iterator[WorkloadFacts | Rejection]:
    """Yield one answer: the facts, or what is wrong with the workload."""
    path = Path(request.workload_path)
    os.chdir(request.working_dir)
    try:
        yield probe(path, request.hardware, request.seed)
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is the answer
        yield Rejection(error=one_line(error), traceback=user_traceback(error, path))
