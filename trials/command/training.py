"""The training in a process of a command, as the hooks at torch's boundaries tell of it."""

import contextlib
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.trials.command.changes import Changes, MadeLoaders, made_loader
from autotune.trials.command.root import Root, unwrapped
from autotune.trials.command.samples import SampleCounter
from autotune.trials.command.wire import Wire
from autotune.trials.profiling.parts import Part

Course = Callable[["Training"], Iterator[None]]
"""Makes a generator that begins after the first optimizer step and goes on after each further."""

# Backward passes that change weights before an optimizer is made, or steps before any module is
# called, after which the training is taken for one that has none.
_PASSES_WITHOUT = 2


class Training:
    """The training in this process: its loader, models and optimizer, and what they did.

    Attributes:
        roots: the outermost modules called with gradients that the optimizers train.
        loader: the first that was iterated with gradients on; None: none was.
        optimizers_stepped: the classes of those that step in turn, the training's first.
        is_observed: whether facts about it are collected: the batch, and autocast inside of roots.
        steps: optimizer steps so far; backward passes where the script updates weights by itself.
        samples: given by the loader so far; without one, taken by the first root.
        batches: given by the loader so far; of several that are read in turn, by the first.
        calls: of the first root, with gradients on, so far; only where no loader feeds it.
        data_wait_s: waited for the loader so far.
        backwards: backward passes so far, without those that an optimizer asks for in its step.
        last_loss: of the latest backward pass, detached.
        batch: the latest that the loader gave, while it is observed.
        interrupted: whether something else than training ran since this was last set to False:
            a forward pass without gradients, another loader, or a checkpoint that was saved.
        options: of the script's command line, with their values; only where it is observed.
        inspect: is called before each call of a root with gradients on; None: nothing is.
        marks: is told which part of a step begins, None for what is no part; None: nothing is.
        made_loaders: how the script made its loaders, by what draws their batches.
        reads_several_loaders: whether batches of more than one were read for one step.
        calls_model: whether a module is called; else `roots` has one that holds the parameters.
        at_end: is called when the script ends by itself; None: nothing is.
        likely_batches: returns the sizes that arguments give to batches.
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
        self.steps = self.samples = self.backwards = self.batches = self.calls = 0
        self.data_wait_s = 0.0
        self.last_loss: Tensor | None = None
        self.batch: Any = None
        self.interrupted = False
        self.options: dict[str, Any] = {}
        self.inspect: Callable[[Root, Any, Any], None] | None = None
        self.marks: Callable[[Part | None], None] | None = None
        self.likely_batches: Callable[[], Collection[int]] = tuple
        self.made_loaders = MadeLoaders()
        self.calls_model = True
        self.at_end: Callable[[], None] | None = None
        self.is_observed = False
        self._counter = SampleCounter()
        self._fed_by: int | None = None  # what identifies the loader of this step's first batch
        self._feeding: weakref.WeakValueDictionary[int, DataLoader[Any]] = (
            weakref.WeakValueDictionary()
        )
        self.reads_several_loaders = False
        self._is_stepping = False
        self._steps_without_model = 0
        self._has_optimizer = False
        self._weights_before: weakref.WeakKeyDictionary[nn.Module, list[float]] = (
            weakref.WeakKeyDictionary()
        )
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
        if not self._has_optimizer and not self.roots:
            self.loader = None  # what was read until now is not what trains
        self._has_optimizer = True
        self._made.add(optimizer)
        self.changes.apply_to_optimizer(optimizer)
        self._owned_by = -1

    def loader_made(self, loader: DataLoader[Any]) -> None:
        """Note how the script makes a loader, and apply the plan's batch."""
        made = made_loader(loader)
        if made is not None:
            self.made_loaders[loader.batch_sampler] = made
            self.changes.apply_to_batches(loader, made)

    def iterates(self, loader: DataLoader[Any]) -> bool:
        """Apply the plan to a loader that begins to give batches; return whether it feeds."""
        is_training = torch.is_grad_enabled()
        if self.roots and not any(root.module.training for root in self.roots):
            is_training = False
        if not is_training:
            self.interrupted = True
            return False
        if self.loader is None or not self.roots:  # before them it may be a validation's
            self.loader, self._fed_by = loader, None
        self._feeding[id(loader)] = loader
        if self._has_optimizer:
            self.changes.begin_epoch(loader)
        else:  # it may be read only once, to look at the data
            self.changes.apply_to_loader(loader)
        is_watched = self._course_of is not None  # else its batches need not be counted
        return is_watched and type(loader) is type(self.loader)

    def begins(self, part: Part | None) -> None:
        """Tell a profiler that a part of a step begins; None: the latest part has ended."""
        if self.marks is not None:
            self.marks(part)

    def took_batch(self, batch: Any, waited_s: float, source: int) -> None:
        """Count a batch that a loader of the training gave.

        Args:
            batch: what it gave.
            waited_s: the seconds that it took.
            source: what identifies the loader; of several in one step, the first one counts.
        """
        self.begins(Part.COPY)
        self.data_wait_s += waited_s
        if self._fed_by is None:
            self._fed_by = source
            if not self.roots:
                self.loader = self._feeding.get(source, self.loader)
        if source != self._fed_by:
            self.reads_several_loaders = True
            return
        self.batch = batch if self.is_observed else None
        self.batches += 1
        if not self._counts_at_root:
            limit = getattr(self.loader, "batch_size", None)
            sizes = self.likely_batches() if limit is None else (limit,)
            self.samples += self._counter.samples_in(batch, sizes, limit)

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
        if not self._has_optimizer:
            return self._is_changed_by_script(module)
        if self._owned_by != len(self._made):
            self._owned = {p for made in self._made for p in _parameters(made)}
            self._owned_by = len(self._made)
        return any(id(parameter) in self._owned for parameter in module.parameters())

    def _is_changed_by_script(self, module: nn.Module) -> bool:
        """Whether weights of a module change between backward passes, with no optimizer."""
        if not self.backwards:
            return False  # nothing is trained yet; lazy modules may even have no weights
        trained = [p for p in module.parameters() if p.requires_grad]
        now = [float(p.detach().sum()) for p in trained]
        before = self._weights_before.setdefault(module, now)
        return self.backwards >= _PASSES_WITHOUT and before != now

    def _adopt(self, outermost: nn.Module, module: nn.Module) -> None:
        if not self.roots:
            self.first_forward_at = time.perf_counter()
            self._counts_at_root = self.loader is None
            self._tell_of_batch()
            if self._course_of is not None and self.rank == 0:
                self._course = self._course_of(self)
                self.wire.first_step()
        with self._failing_the_trial():
            root = self.changes.apply_to_model(outermost, module, self)
            if self._counts_at_root and not self.roots and root.is_traced:
                self._count_calls_before(outermost)
            self.roots.append(root)
            if self.is_observed:
                root.look_at_autocast()

    def _tell_of_batch(self) -> None:
        problem = self.changes.batch_problem()
        if problem is not None and self.rank == 0:
            sys.stderr.write(f"autotune: {problem}\n")

    def forward_begins(self, root: Root, args: Any, kwargs: Any) -> None:
        """Note that a root is called with gradients on."""
        self.begins(Part.FORWARD)
        if self._counts_at_root and root is self.roots[0] and not root.is_traced:
            self._count_call(args, kwargs)
        if self.inspect is not None:
            self.inspect(root, args, kwargs)
        self.changes.enter_autocast(root.device)

    def _count_call(self, args: Any, kwargs: Any) -> None:
        self.calls += 1
        sizes = self.likely_batches()
        self.samples += self._counter.samples_in((args, kwargs), sizes, None)

    def _count_calls_before(self, outermost: nn.Module) -> None:
        """Count calls where the compiler does not trace them: a count would be a guard."""

        def count(module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled():
                self._count_call(args, kwargs)

        outermost.register_forward_pre_hook(count, with_kwargs=True)

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
            self.backwards += not self._is_stepping
        return was_inside

    def backward_ends(self, *, was_inside: bool) -> None:
        """Note that a backward pass has ended."""
        self._pass_is_on = was_inside
        if not was_inside:
            self.begins(None)
            if self.roots and not self._has_optimizer:
                self._step_ended()

    def saves(self) -> None:
        """Note that a checkpoint is saved."""
        self.interrupted = True

    def script_ends(self) -> None:
        """Note that the script has ended, in the process that began it."""
        if self.at_end is not None:
            self.at_end()

    def step_begins(self) -> None:
        """Note that an optimizer begins its step, in which it may ask for backward passes."""
        self.begins(Part.OPTIMIZER)
        self._is_stepping = True

    def stepped(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer, and go on with the course after one of the training's."""
        self.begins(None)
        self._is_stepping = False
        self.changes.leave_autocast()
        if not self.roots:
            self._steps_without_model += 1
            if self._steps_without_model > _PASSES_WITHOUT:
                self._adopt_parameters(optimizer)
            return
        self._note_optimizer(optimizer)
        if optimizer is not self.optimizer:
            return
        if not self.calls_model and self._counts_at_root:
            self.samples += 1
        self._step_ended()

    def _step_ended(self) -> None:
        self.steps += 1
        self._fed_by = None
        with self._failing_the_trial():
            if self.steps == 1:
                self.changes.check_blocks()
            if self._course is not None and not self._has_ended:
                next(self._course, None)

    def _adopt_parameters(self, optimizer: Optimizer) -> None:
        """Take an optimizer's parameters for the model, as no module that holds them is called."""
        trained = (p for group in optimizer.param_groups for p in group["params"])
        self.calls_model = False
        stand_in = nn.ParameterList(trained)
        self._adopt(stand_in, stand_in)

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
