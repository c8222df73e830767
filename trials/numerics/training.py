"""Single steps of a training from given weights, with the gradients that its optimizer reads."""

import copy
import pickle
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.trials.applying.step import Step
from autotune.trials.numerics.state import Kept, layout_of, local, parameters_of
from autotune.trials.process_group import Ranks
from autotune.trials.seeding import seed_all

# fp16's loss scale begins at 2^16 and is halved at each step that overflows; a gradient that does
# not fit after so many halvings is none that a scale could save.
_MAX_SKIPPED = 24

Batches = Sequence[Any]
"""The micro-batches of one optimizer step."""


class Gradients:
    """What an optimizer reads as gradients in a step, also in one that a device replays.

    A copy to the same place in each step is a part of what is recorded, so a replay makes it, too.
    NaN stands for what was not read: the step was skipped.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        named = parameters_of(model).items()
        self._parameters = {name: p for name, p in named if p.requires_grad}
        self._read: dict[str, Tensor] = {}
        self._is_seen = False
        self._hook = optimizer.register_step_pre_hook(self._look)

    def detach(self) -> None:
        """Look no longer."""
        self._hook.remove()

    def forget(self) -> None:
        """Call before a step."""
        for seen in self._read.values():
            seen.fill_(torch.nan)

    def is_complete(self) -> bool:
        """Whether this rank's optimizer has read a gradient, and only finite ones."""
        if not self._read:
            return False
        return bool(torch.stack([seen.isfinite().all() for seen in self._read.values()]).all())

    @property
    def is_seen(self) -> bool:
        """Whether any parameter has ever had a gradient when this rank's optimizer stepped."""
        return self._is_seen

    def kept(self) -> Iterator[tuple[str, Kept]]:
        """Yield the gradients by their parameters' names, cut as these are; not copied."""
        for name, parameter in self._parameters.items():
            seen = self._read.get(name)
            if seen is None:
                seen = torch.full_like(local(parameter), torch.nan)
            yield name, Kept(seen.detach(), layout_of(parameter))

    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scale = getattr(optimizer, "grad_scale", None)  # a fused one unscales by itself
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                part = local(parameter)
                seen = self._read.get(name)
                if seen is None:
                    seen = self._read[name] = torch.zeros_like(part)
                self._is_seen |= parameter.grad is not None
                self._copy(seen, parameter.grad)
                if scale is not None:
                    seen.div_(scale)

    @staticmethod
    def _copy(seen: Tensor, gradient: Tensor | None) -> None:
        if gradient is None:
            seen.zero_()
        else:
            part = local(gradient)
            seen.copy_(part.to_dense() if part.is_sparse else part)


class Training:
    """Runs a step on one list of micro-batches after the other, each from weights given to it.

    Attributes:
        step: what is run.
        num_steps: there are batches for.
        gradients: of the last step.
        has_drawn: whether any step drew random numbers.
    """

    def __init__(self, step: Step, batches: Sequence[Batches], seed: int, ranks: Ranks) -> None:
        self.step = step
        self.num_steps = len(batches)
        self.gradients = Gradients(step.model, step.optimizer)
        self.has_drawn = False
        self._batches, self._seed, self._ranks = batches, seed, ranks
        self._tries = _MAX_SKIPPED if step.plan.get("precision", "fp32") == "fp16" else 1

    def run(self, number: int, begin: Callable[[], None]) -> float:
        """Take one optimizer step and return its loss, the mean over micro-batches and ranks.

        Args:
            number: of the step.
            begin: puts the weights where the step is to begin. A step that fp16's scale skips is
                run again, from the same weights.
        """
        loss = torch.nan
        for _ in range(self._tries):
            begin()
            loss = self._once(number)
            if self._ranks.worst(float(not self.gradients.is_complete())) == [0.0]:
                break
        return loss

    def _once(self, number: int) -> float:
        seed_all(self._seed + number)
        self.gradients.forget()
        before = generator_states(self.step.device)
        # Each is read at once: the next replay of a CUDA graph overwrites it.
        losses = [self.step(_copied(batch)).item() for batch in self._batches[number]]
        self.has_drawn |= generator_states(self.step.device) != before
        (loss,) = self._ranks.mean(statistics.fmean(losses))
        return loss


def _copied(batch: Any) -> Any:
    """Return a copy: on a CPU the workload gets the batch itself, and may change it."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # noqa: BLE001  what cannot be copied is hardly what is changed
        return batch


def generator_states(device: torch.device) -> tuple[object, ...]:
    """Return what all sources of random numbers would draw next, as values to compare."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.empty(0)
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else pickle.dumps(numpy.random.get_state())
    of_torch = (torch.get_rng_state().tolist(), on_device.tolist())
    return (*of_torch, random.getstate(), of_numpy)
