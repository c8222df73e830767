"""The training in a process of a command, as the hooks at torch's boundaries tell of it."""

import contextlib
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from autotune.trials.command.changes import Changes
from autotune.trials.command.root import Root, unwrapped
from autotune.trials.command.wire import Wire
from autotune.trials.profiling.parts import Part

Course = Callable[["Training"], Iterator[None]]
"""Makes a generator that begins after the first optimizer step and goes on after each further."""


class Training:
    """The training in this process: its loader, models and optimizer, and what they did.

    Attributes:
        roots: the outermost modules called with gradients that the optimizers train.
        loader: the first that was iterated with gradients on; None: none was.
        optimizers_stepped: the classes of those that step in turn, the training's first.
        is_observed: whether facts about it are collected: the batch, and autocast inside of roots.
        steps: optimizer steps so far.
        samples: given by the loader so far; without one, taken by the first root.
        data_wait_s: waited for the loader so far.
        backwards: backward passes so far.
        last_loss: of the latest backward pass, detached.
        batch: the latest that the loader gave, while it is observed.
        interrupted: whether something else than training ran since this was last set to False:
            a forward pass without gradients, another loader, or a checkpoint that was saved.
        options: of the script's command line, with their values; only where it is observed.
        inspect: is called before each call of a root with gradients on; None: nothing is.
        marks: is told which part of a step begins, None for what is no part; None: nothing is.
    """

    def __init__(self, changes: Changes, wire: Wire, course: Course | None) -> None:
        self.changes, self.wire = changes, wire
        self._course_of = course
        self._course: Iterator[None] | None = None
        self.started_at = time.perf_counter()
        self.first_forward_at = self.started_at
        self.roots: list[Root] = []
        self._optimizer: weakref.ref[Optimizer] | None = None
        self.optimizers_stepped: list[str] = []
        self.loader: DataLoader[Any] | None = None
        self.steps = self.samples = self.backwards = 0
        self.data_wait_s = 0.0
        self.last_loss: Tensor | None = None
        self.batch: Any = None
        self.interrupted = False
        self.options: dict[str, Any] = {}
        self.inspect: Callable[[Root, Any, Any], None] | None = None
        self.marks: Callable[[Part | None], None] | None = None
        self.is_observed = False
        self._others = set[int]()
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._owned: set[int] = set()
        self._owned_by = -1
        self._pass_is_on = False
        self._has_ended = False
        self._counts_at_root = False

    # What the hooks tell.

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Note an optimizer, whose parameters are trained."""
        self._made.add(optimizer)
        self.changes.apply_to_optimizer(optimizer)
        self._owned_by = -1

    def iterates(self, loader: DataLoader[Any]) -> bool:
        """Apply the plan to a loader that begins to give batches; return whether it feeds."""
        is_training = torch.is_grad_enabled() and len(self._made) > 0
        if self.roots and not any(root.module.training for root in self.roots):
            is_training = False
        if not is_training:
            self.interrupted = True
            return False
        if self.loader is None or not self.roots:  # before them it may be a validation's
            self.loader = loader
        self.changes.begin_epoch(loader)
        is_watched = self._course_of is not None  # else its batches need not be counted
        return is_watched and type(loader) is type(self.loader)

    def begins(self, part: Part | None) -> None:
        """Note that a part of a step begins, or with None that one has ended."""
        if self.marks is not None:
            self.marks(part)

    def took_batch(self, batch: Any, waited_s: float) -> None:
        """Count a batch that the training loader gave, and the seconds that it took."""
        self.begins(Part.COPY)
        self.data_wait_s += waited_s
        self.batch = batch if self.is_observed else None
        if not self._counts_at_root:
            self.samples += samples_in(batch, self.loader)

    def enters(self, module: nn.Module) -> bool:
        """Whether a module that is called is a new root; apply the plan to it if so."""
        if self._pass_is_on or not torch.is_grad_enabled() or not self._is_owned(module):
            return False
        inner = unwrapped(module)
        if all(root.module is not inner for root in self.roots):
            self._adopt(module, inner)
        self._pass_is_on = True
        return True

    def leaves(self) -> None:
        """Note that the call of a root has returned."""
        self._pass_is_on = False

    def _is_owned(self, module: nn.Module) -> bool:
        if self._owned_by != len(self._made):
            self._owned = {p for made in self._made for p in _parameters(made)}
            self._owned_by = len(self._made)
        return any(id(parameter) in self._owned for parameter in module.parameters())

    def _adopt(self, outermost: nn.Module, module: nn.Module) -> None:
        if not self.roots:
            self.first_forward_at = time.perf_counter()
            self._counts_at_root = self.loader is None
            if self._course_of is not None and self.rank == 0:
                self._course = self._course_of(self)
                self.wire.first_step()
        with self._failing_the_trial():
            root = self.changes.apply_to_model(outermost, module, self)
            self.roots.append(root)
            if self.is_observed:
                root.look_at_autocast()

    def forward_begins(self, root: Root, args: Any, kwargs: Any) -> None:
        """Note that a root is called with gradients on."""
        self.begins(Part.FORWARD)
        if self._counts_at_root and root is self.roots[0]:
            self.samples += samples_in((args, kwargs), None)
        if self.inspect is not None:
            self.inspect(root, args, kwargs)
        self.changes.enter_autocast(root.device)

    def forward_without_gradients(self) -> None:
        """Note that a root is called with gradients off, as validation does."""
        self.changes.leave_autocast()
        self.interrupted = True

    def backward_begins(self, tensors: Any) -> bool:
        """Note a backward pass from these tensors; what it calls again is no root.

        Returns:
            Whether it is inside of a root's call or of another backward pass.
        """
        self.changes.leave_autocast()
        was_inside, self._pass_is_on = self._pass_is_on, True
        if not was_inside:
            self.begins(Part.BACKWARD)
            first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            if isinstance(first, Tensor) and first.numel() == 1:
                self.last_loss = first.detach()
            self.backwards += 1
        return was_inside

    def backward_ends(self, *, was_inside: bool) -> None:
        """Note that a backward pass has ended."""
        self._pass_is_on = was_inside
        if not was_inside:
            self.begins(None)

    def saves(self) -> None:
        """Note that a checkpoint is saved."""
        self.interrupted = True

    def stepped(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer, and go on with the course after one of the training's."""
        self.begins(None)
        self.changes.leave_autocast()
        if not self.roots:
            return
        self._note_optimizer(optimizer)
        if optimizer is not self.optimizer:
            return
        self.steps += 1
        if self._course is None or self._has_ended:
            return
        with self._failing_the_trial():
            next(self._course, None)

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        """Take it for the training's if there is none, or one of the same parameters."""
        known = self.optimizer
        if known is optimizer:
            return
        if known is None or not _parameters(known).isdisjoint(_parameters(optimizer)):
            self._optimizer = weakref.ref(optimizer)
            self.optimizers_stepped = self.optimizers_stepped or [type(optimizer).__name__]
        elif self.is_searching and id(optimizer) not in self._others:
            self._others.add(id(optimizer))
            self.optimizers_stepped.append(type(optimizer).__name__)

    # What courses ask.

    @property
    def optimizer(self) -> Optimizer | None:
        """The first optimizer that stepped, whose steps are the training's; None: none did yet."""
        return None if self._optimizer is None else self._optimizer()

    @property
    def is_searching(self) -> bool:
        """Whether there may be roots that have not been seen: until the second step."""
        return self.steps < 2

    @property
    def rank(self) -> int:
        """The number of this process among those that train together."""
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ.get("RANK", "0"))

    @property
    def world_size(self) -> int:
        """The number of processes that train together."""
        if dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def device(self) -> torch.device:
        """The device of the first root."""
        return self.roots[0].device

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss_later(self) -> Tensor:
        """Return the latest loss on the host, valid once the device has got here.

        NaN where no backward pass began at a scalar.
        """
        if self.last_loss is None:
            return torch.tensor(float("nan"))
        on_gpu = self.last_loss.is_cuda
        kept = torch.empty((), pin_memory=on_gpu)
        return kept.copy_(self.last_loss.reshape(()), non_blocking=on_gpu)

    def wait_to_be_killed(self) -> NoReturn:
        """Stop training: what comes next is not for half a training."""
        self._has_ended = True
        while True:
            signal.pause()

    @contextlib.contextmanager
    def _failing_the_trial(self) -> Iterator[None]:
        """Report an exception of ours as the trial's result, so that no script can catch it."""
        try:
            yield
        except Exception as error:
            if self.wire.fails(error):
                self.wait_to_be_killed()
            raise


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def samples_in(batch: Any, loader: Any) -> int:
    """Return the samples of a batch: the first dimension of its first tensor.

    A tensor that is longer than the loader's batch holds no sample for each row, as in a batch of
    graphs; then it is the loader's.
    """
    size = getattr(loader, "batch_size", None)
    leaves = (leaf for leaf in tree_leaves(plain(batch)) if isinstance(leaf, Tensor))
    first = next((leaf.shape[0] for leaf in leaves if leaf.dim() > 0), None)
    if first is None or (size is not None and first > size):
        return int(size or 1)
    return int(first)


def plain(batch: Any) -> Any:
    """Return a batch of a library's mapping class as a dict, which torch's trees can walk."""
    if hasattr(batch, "keys") and not isinstance(batch, dict):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118  it may be no mapping
    return batch
