"""Hooks at torch's boundaries, through which a plan reaches a training script as it is.

What is hooked: where a loader begins and gives a batch, where an optimizer or DDP is made, where
an optimizer steps, where a backward pass begins, where something is saved, and, until the training
has taken two steps, where a module is called.
"""

import argparse
import atexit
import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from wrapt import register_post_import_hook

from autotune.search_space.command import Command
from autotune.trials.applying.kernels import use_empty_cache_beside
from autotune.trials.command.changes import Changes
from autotune.trials.command.courses import course_of
from autotune.trials.command.order import Order, Task, order_of
from autotune.trials.command.root import Root
from autotune.trials.command.scratch import SAVED, confine
from autotune.trials.command.training import Training
from autotune.trials.command.wire import Wire
from autotune.trials.profiling.parts import Part

_COMPILER = "torch._dynamo.eval_frame"
_SAFETENSORS = "safetensors.torch"
_OPTIONS_VARIABLE = "AUTOTUNE_OPTIONS"
# An attribute of iterators, which identifies the loader where that one is the training's.
_SOURCE = "_autotune_source"


def attach() -> Training:
    """Hook into torch, as the order in this process's environment says."""
    order = order_of()
    changes = Changes(order.plan, order.memory_limit_bytes, order.command.loaders)
    wire = Wire(order.address, Path(order.home, order.command.script))
    training = Training(changes, wire, course_of(order))
    wire.report_uncaught()
    if order.kernels_path is not None:
        use_empty_cache_beside(Path(order.kernels_path))
    if order.scratch is not None:
        confine(order.scratch, order.home)
    changes.apply_to_process()
    training.likely_batches = partial(_likely_batches, training, order)
    atexit.register(training.script_ends)
    _hook_loaders(training)
    _hook_optimizers(training)
    _hook_ddp(changes)
    _hook_cross_entropy(changes)
    _hook_calls(training)
    if order.task is not Task.TRAIN:
        _hook_saving(training)
    if order.task is Task.OBSERVE:
        training.is_observed = True
        _hook_arguments(training, order.command)
    return training


def _likely_batches(training: Training, order: Order) -> Collection[int]:
    """Return the sizes that the plan, or else the script's arguments, give to batches."""
    if order.command.flag_of("batch_size") is not None and "batch_size" in order.plan:
        return (int(order.plan["batch_size"]),)
    return order.command.batch_sizes(training.options)


def _hook_loaders(training: Training) -> None:
    make = DataLoader.__init__
    begin, following = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def made(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        make(loader, *args, **kwargs)
        training.loader_made(loader)

    def iterate(loader: DataLoader[Any]) -> Any:
        feeds = training.iterates(loader)
        iterator = begin(loader)
        setattr(iterator, _SOURCE, id(loader) if feeds else None)
        return iterator

    def take(iterator: Any) -> Any:
        source = getattr(iterator, _SOURCE, None)
        if source is None:
            return following(iterator)
        training.begins(Part.DATA)
        start = time.perf_counter()
        batch = following(iterator)
        training.took_batch(batch, time.perf_counter() - start, source)
        return batch

    _replace(DataLoader, "__init__", made)
    _replace(DataLoader, "__iter__", iterate)
    _replace(_BaseDataLoaderIter, "__next__", take)


def _hook_optimizers(training: Training) -> None:
    make = Optimizer.__init__

    def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        training.optimizer_made(optimizer)

    _replace(Optimizer, "__init__", noted)
    kinds = {kind for kind in vars(torch.optim).values() if inspect.isclass(kind)}
    for kind in kinds:
        if issubclass(kind, Optimizer) and kind is not Optimizer:
            _replace(kind, "__init__", _with_implementation(kind, training.changes))
    register_optimizer_step_pre_hook(lambda *_: training.step_begins())
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: training.stepped(optimizer))


def _with_implementation(kind: type[Optimizer], changes: Changes) -> Callable[..., None]:
    make = kind.__init__

    def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **changes.optimizer_arguments(kind, kwargs))

    return made


def _hook_ddp(changes: Changes) -> None:
    make = DistributedDataParallel.__init__

    def made(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(ddp, *args, **changes.ddp_arguments(kwargs))
        changes.apply_to_ddp(ddp)

    _replace(DistributedDataParallel, "__init__", made)


def _hook_cross_entropy(changes: Changes) -> None:
    """Compute the cross entropy of probabilities in fp32: CUDA refuses it under autocast."""
    compute = functional.binary_cross_entropy

    def in_fp32(given: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not changes.is_in_autocast:
            return compute(given, target, *args, **kwargs)
        with torch.autocast(given.device.type, enabled=False):
            return compute(given.float(), target.float(), *args, **kwargs)

    _replace(functional, "binary_cross_entropy", in_fp32)


def _hook_calls(training: Training) -> None:
    """Hook backward passes, and the calls of modules until the roots are known."""
    backward, call = torch.autograd.backward, nn.Module.__call__

    def backpropagate(tensors: Any, *args: Any, **kwargs: Any) -> None:
        was_inside = training.backward_begins(tensors)
        try:
            backward(tensors, *args, **kwargs)
        finally:
            training.backward_ends(was_inside=was_inside)

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not training.is_searching:
            nn.Module.__call__ = call  # type: ignore[method-assign]
            return call(module, *args, **kwargs)
        if not training.enters(module):
            return call(module, *args, **kwargs)
        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:  # its parts are called as ever: the compiler traces those calls
            return call(module, *args, **kwargs)
        finally:
            nn.Module.__call__ = called  # type: ignore[method-assign]
            training.leaves()

    _replace(torch.autograd, "backward", backpropagate)
    hidden = (called, Root.__call__, Root.run)
    register_post_import_hook(lambda module: _hide_from_compiler(module, hidden), _COMPILER)
    nn.Module.__call__ = called  # type: ignore[method-assign]


def _hide_from_compiler(module: Any, functions: Iterable[Any]) -> None:
    """Let a model that the script compiles be traced behind these functions, not through them."""
    for function in functions:
        module.skip_code(function.__code__)


def _hook_saving(training: Training) -> None:
    """Note what is saved, and announce the files that no Python code opens.

    Writers in C++ and Rust raise no audit event, by which `scratch` learns of files.
    """
    save = torch.save

    def noted(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        training.saves()
        _announce(f)
        save(obj, f, *args, **kwargs)

    _replace(torch, "save", noted)
    register_post_import_hook(lambda module: _hook_safetensors(module, training), _SAFETENSORS)


def _hook_safetensors(module: Any, training: Training) -> None:
    save = module.save_file

    def noted(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
        training.saves()
        _announce(filename)
        save(tensors, filename, *args, **kwargs)

    _replace(module, "save_file", noted)


def _announce(path: Any) -> None:
    if isinstance(path, str | os.PathLike):
        sys.audit(SAVED, os.fspath(path))


def _hook_arguments(training: Training, command: Command) -> None:
    """Note the options that the script's parser knows, and the values that it gives them.

    Not where a shell script starts it, which may keep what is added to the command for itself.
    Processes that the script starts get them by the environment.
    """
    parse = argparse.ArgumentParser.parse_known_args
    training.options.update(json.loads(os.environ.get(_OPTIONS_VARIABLE, "{}")))

    def noted(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parsed, rest = parse(parser, *args, **kwargs)
        if not command.runs(sys.argv[0]):
            return parsed, rest
        for action in parser._actions:  # noqa: SLF001  nothing public lists them
            for option in action.option_strings:
                training.options[option] = getattr(parsed, action.dest, None)
        numbers = {k: v for k, v in training.options.items() if isinstance(v, int)}
        os.environ[_OPTIONS_VARIABLE] = json.dumps(numbers)
        return parsed, rest

    _replace(argparse.ArgumentParser, "parse_known_args", noted)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put `function` in the place of one that it calls, with that one's name and signature."""
    setattr(owner, name, functools.wraps(getattr(owner, name))(function))
