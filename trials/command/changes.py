"""Applies a plan to a training script from outside: to loaders, optimizers, models and DDP."""

import contextlib
import inspect
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader

from autotune.search_space.command import MadeLoader
from autotune.search_space.plan import Plan, Value
from autotune.trials.applying.apply import kept_open
from autotune.trials.applying.blocks import check_found, repeated_blocks
from autotune.trials.applying.checkpoints import keep_implementation
from autotune.trials.applying.compiler import compile_blocks, compile_model
from autotune.trials.applying.families import process_settings
from autotune.trials.applying.kernels import load_plans_kernels
from autotune.trials.applying.layout import in_memory_format
from autotune.trials.applying.memory import checkpoint_blocks
from autotune.trials.applying.offload import offload_blocks
from autotune.trials.applying.precision import autocast, half_dtype
from autotune.trials.applying.replicated import COMM_HOOKS, DDP_DEFAULT_BUCKET_MB
from autotune.trials.command.root import Root, Watcher
from autotune.trials.process_group import limit_device_memory

_DEPTH = 3  # of objects inside of a dataset that are looked at for what a script may change
_IMPLEMENTATIONS = ("foreach", "fused")
# Knobs that act on repeated blocks, and their values for a model that has none.
_WITHOUT_BLOCKS: dict[str, Value] = {
    "compile_scope": "model",
    "activation_checkpointing": "none",
    "activation_offload": "off",
}
MadeLoaders = weakref.WeakKeyDictionary[Any, MadeLoader]
"""How a script made its loaders, by what draws their batches, which wrappers of loaders share."""


class Changes:
    """What a plan changes in a training script. A setting that the script has already is left.

    Args:
        plan: knobs that it leaves out stay as the script has them.
        memory_limit_bytes: the device memory that this process may reserve; None: all.
        loaders: how the script makes those that get the plan's batch; None: none do.
    """

    def __init__(
        self,
        plan: Plan,
        memory_limit_bytes: int | None = None,
        loaders: MadeLoader | None = None,
    ) -> None:
        self.plan = plan
        self._loaders = loaders
        self._num_loaders = 0  # that got the plan's batch
        self._has_blocks = False  # whether a root has repeated blocks
        self._memory_limit_bytes = memory_limit_bytes
        self._settings = contextlib.ExitStack()
        self._kept_workers: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._dataset_states: weakref.WeakKeyDictionary[DataLoader[Any], Any] = (
            weakref.WeakKeyDictionary()
        )
        self._half = half_dtype(plan)
        self._autocast: contextlib.AbstractContextManager[Any] | None = None

    def apply_to_process(self) -> None:
        """Enter the plan's process-wide settings, for as long as the process lives."""
        kept_open(self._settings).enter_context(process_settings(self.plan))

    def apply_to_batches(self, loader: DataLoader[Any], made: MadeLoader) -> None:
        """Let a loader that has just been made give batches of the plan's size."""
        if made != self._loaders or "batch_size" not in self.plan:
            return
        self._num_loaders += 1
        size = int(self.plan["batch_size"])
        loader.batch_sampler.batch_size = size  # type: ignore[union-attr]
        vars(loader)["batch_size"] = size  # a loader refuses to be told later

    def batch_problem(self) -> str | None:
        """Return why the plan's batch is not in effect once the training has begun, or None."""
        if self._loaders is None or self._num_loaders or "batch_size" not in self.plan:
            return None
        return (
            f"the plan's batch_size={self.plan['batch_size']} is not in effect: the script makes "
            f"no {self._loaders} any more; set the batch in the script"
        )

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Apply the plan to a loader that is about to give batches, and keep its workers.

        They are kept from epoch to epoch where the plan brought them.
        """
        had_workers = loader.num_workers
        self.apply_to_loader(loader)
        if loader.num_workers and not had_workers:
            vars(loader)["persistent_workers"] = True  # a loader refuses to be told later
            self._kept_workers.add(loader)
        if loader in self._kept_workers:
            self._end_outdated_workers(loader)
            _draw_seed_of_workers(loader)

    def apply_to_loader(self, loader: DataLoader[Any]) -> None:
        """Set the plan's workers, prefetch and pinning, before the loader gives batches."""
        plan = self.plan
        if "workers" in plan and loader.num_workers != int(plan["workers"]):
            loader.num_workers = int(plan["workers"])
            if not loader.num_workers:
                loader.prefetch_factor = None
                loader.multiprocessing_context = None
                vars(loader)["persistent_workers"] = False
        if loader.num_workers and "prefetch" in plan:
            loader.prefetch_factor = int(plan["prefetch"])
        elif loader.num_workers and loader.prefetch_factor is None:
            loader.prefetch_factor = 2
        if "pin_memory" in plan:
            loader.pin_memory = bool(plan["pin_memory"])

    def _end_outdated_workers(self, loader: DataLoader[Any]) -> None:
        """Let workers start anew for an epoch before which the script changed its dataset."""
        now = state_of(loader.dataset)
        if self._dataset_states.get(loader, now) != now:
            loader._iterator = None  # noqa: SLF001  where torch keeps the workers between epochs
        self._dataset_states[loader] = now

    def optimizer_arguments(self, kind: type[Optimizer], given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of an optimizer's constructor, with the plan's implementation."""
        impl = str(self.plan.get("optimizer_impl", "default"))
        taken = inspect.signature(kind.__init__).parameters
        if impl == "default" or impl not in taken:
            return given
        return {**given, **{flag: flag == impl for flag in _IMPLEMENTATIONS if flag in taken}}

    def apply_to_optimizer(self, optimizer: Optimizer) -> None:
        """Let the optimizer keep the plan's implementation when it loads a checkpoint."""
        if self.plan.get("optimizer_impl", "default") != "default":
            keep_implementation(optimizer)

    def ddp_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of DDP's constructor, with those of the plan."""
        names = {"bucket_mb": "bucket_cap_mb"}
        knobs = ("bucket_mb", "gradient_as_bucket_view", "static_graph")
        own = {
            "bucket_mb": DDP_DEFAULT_BUCKET_MB,
            "gradient_as_bucket_view": False,
            "static_graph": False,
        }
        changed = {
            names.get(knob, knob): self.plan[knob]
            for knob in knobs
            if self.plan.get(knob, own[knob]) != own[knob]
        }
        return {**given, **changed}

    def apply_to_ddp(self, ddp: DistributedDataParallel) -> None:
        """Register the plan's communication hook."""
        hook = COMM_HOOKS.get(str(self.plan.get("comm_hook", "none")))
        if hook is not None:
            ddp.register_comm_hook(None, hook)

    def apply_to_model(
        self,
        outermost: nn.Module,
        module: nn.Module,
        watcher: Watcher,
        kind: type[Root] = Root,
    ) -> Root:
        """Change a root's layout, checkpointing and compilation; return its forward pass.

        A root without repeated blocks, such as a projection beside an encoder, is compiled as a
        whole where the others are compiled by blocks, and nothing in it is checkpointed.

        Where a file of kernels came with the plan, the compiler starts from them.

        Raises:
            InvalidPlanError: when the plan cannot be applied to this model.
        """
        device = next(module.parameters()).device
        if self._memory_limit_bytes is not None and device.type == "cuda":
            limit_device_memory(device, self._memory_limit_bytes)
        self._set_threads()
        load_plans_kernels(self.plan, device)
        eager = module.forward
        in_memory_format(module, self.plan)
        blocks = repeated_blocks(module)
        self._has_blocks = self._has_blocks or bool(blocks)
        plan = self.plan if blocks else _without_blocks(self.plan)
        blocks = checkpoint_blocks(module, blocks, plan)
        compile_blocks(module, blocks, plan)
        offload_blocks(module, blocks, plan)
        compile_model(module, plan)
        root = kind(
            module,
            outermost,
            eager,
            module.forward,
            watcher,
            plan=self.plan,
        )
        module.forward = root
        return root

    def check_blocks(self) -> None:
        """Check, once the roots are known, that one of them has what the plan does to blocks.

        Raises:
            InvalidPlanError: when none has repeated blocks.
        """
        if not self._has_blocks and (wanted := _of_blocks(self.plan)):
            knob, value = next(iter(wanted.items()))
            check_found([], f"{knob}={value}")

    @property
    def is_in_autocast(self) -> bool:
        """Whether what runs now computes in the plan's 16 bits."""
        return self._autocast is not None

    def enter_autocast(self, device: torch.device) -> None:
        """Compute in the plan's 16 bits until the backward pass, unless the script does so."""
        if self._half is None or torch.is_autocast_enabled(device.type):
            return
        self._autocast = autocast(device.type, self._half)
        self._autocast.__enter__()

    def leave_autocast(self) -> None:
        """End what `enter_autocast` began."""
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
            self._autocast = None

    def _set_threads(self) -> None:
        """Set the plan's threads once more: the script may have set its own since it began."""
        threads = self.plan.get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            torch.set_num_threads(int(threads))


def made_loader(loader: DataLoader[Any]) -> MadeLoader | None:
    """Return how a loader was made; None for one that makes its batches in a way of its own."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return None
    return MadeLoader(batch_size=batches.batch_size, sampler=type(batches.sampler).__name__)


def _draw_seed_of_workers(loader: DataLoader[Any]) -> None:
    """Draw the seed that a loader draws in each epoch, but for one whose workers go on.

    Without it the samples of later epochs would come in another order than in the script's own.
    """
    if loader._iterator is not None:  # noqa: SLF001  see `_end_outdated_workers`
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def state_of(held: Any, depth: int = _DEPTH) -> Any:
    """Return what tells whether an object's attributes were changed, without reading its data."""
    if isinstance(held, int | float | str | bool | None):
        return held
    if isinstance(held, list | dict | set):
        return id(held), len(held)
    attributes = getattr(held, "__dict__", None)
    if not depth or not isinstance(attributes, dict):
        return id(held)
    return id(held), {name: state_of(value, depth - 1) for name, value in attributes.items()}


def _of_blocks(plan: Plan) -> dict[str, Value]:
    """Return the plan's settings that need repeated blocks."""
    return {
        name: plan[name] for name, own in _WITHOUT_BLOCKS.items() if plan.get(name, own) != own
    }


def _without_blocks(plan: Plan) -> Plan:
    """Return the plan for a model without repeated blocks."""
    return Plan.of({**plan.values, **{name: _WITHOUT_BLOCKS[name] for name in _of_blocks(plan)}})
