"""A training step under a plan: what trials measure and what users train with."""

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.errors import UsageError
from autotune.search_space.knobs.compiler import records_cuda_graphs
from autotune.search_space.plan import Plan
from autotune.trials.applying import precision
from autotune.trials.applying.ahead import CopiedAhead, CudaCopies
from autotune.trials.applying.batch import accumulation, moved
from autotune.trials.applying.graphs import RecordedStep, is_recorded
from autotune.trials.applying.layout import image_format, is_images
from autotune.trials.applying.loader import copies_ahead, is_non_blocking
from autotune.trials.applying.python_state import python_state
from autotune.trials.applying.ranks import Sharded
from autotune.trials.applying.recomputation import RecomputationCheck
from autotune.trials.workload import ComputeLoss

# Steps after the first in which a compiler mode that records CUDA graphs warms up and records.
_GRAPH_RECORDING_STEPS = 3
_SCALER = "scaler"  # the key of the gradient scaler in a step's state dict


class Step:
    """One micro-step per call: copy, forward, backward, and the optimizer when it is due.

    A training loop of the user's own can call the parts of the step instead, which never replay a
    recorded step. Over several ranks only `loss` makes them average their gradients; on one device
    `step.autocast()` and `step.model` are enough:

        loss = step.loss(step.move(batch), my_loss)
        step.backward(loss)
        step.clip(1.0)  # if you clip gradients
        step.update()

    Attributes:
        model: built, moved, checkpointed, compiled and sharded as the plan says. Under DDP it is
            the model inside of the wrapper, so that names in the state dict stay.
        optimizer: of the user's class, with the plan's implementation.
        loader: batches of `batch_size` samples of this rank each: on the CPU, or on the device
            where the plan copies them ahead.
        plan, device: what it was built with.
        accumulation: calls per optimizer step.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        sharded: Sharded,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        compute_loss: ComputeLoss,
        plan: Plan,
        device: torch.device,
        settings: contextlib.ExitStack,
    ) -> None:
        self.model = model
        self._sharded = sharded
        self.optimizer = optimizer
        self.loader: DataLoader[Any] | CopiedAhead = loader
        self.plan = plan
        self.device = device
        self.accumulation = accumulation(plan)
        self._compute_loss = compute_loss
        self._settings = settings
        self._micro_steps = 0
        # Under FSDP's own mixed-precision policy autocast is not needed.
        self._autocast_dtype = None if sharded.casts else precision.half_dtype(plan)
        self._marks_graphs = records_cuda_graphs(plan)
        self._scaler = precision.gradient_scaler(plan, device.type)
        self._non_blocking = is_non_blocking(plan)
        self._image_format = image_format(plan)
        if copies_ahead(plan, device):
            self.loader = CopiedAhead(loader, self.move, CudaCopies(device))
        self._recomputation = RecomputationCheck(model, plan)
        self._recorded = self._recorder() if self.is_recorded else None

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay one recorded step. `loss`, `backward` and `update` never do."""
        return is_recorded(self.plan, self.device)

    @property
    def is_ready(self) -> bool:
        """Whether later calls run like the next one: a step to be recorded has been recorded."""
        return self._recorded is None or self._recorded.is_ready

    @property
    def steps_until_ready(self) -> int:
        """Steps after the first one before step times can be trusted."""
        return _GRAPH_RECORDING_STEPS if self._marks_graphs else 1

    def _recorder(self) -> RecordedStep:
        return RecordedStep(
            self._train,
            self.move,
            lambda: python_state(self.model, self.optimizer, self._compute_loss),
            self.optimizer,
            self.device,
            non_blocking=self._non_blocking,
        )

    def __call__(self, batch: Any) -> Tensor:
        """Train on one batch from the loader and return its loss, detached, on the device.

        The optimizer steps in every `accumulation`-th call.
        """
        if self._recorded is not None:
            return self._recorded(batch)
        return self._train(self.move(batch))

    def _train(self, batch: Any) -> Tensor:
        loss = self.loss(batch)
        self.backward(loss)
        if self._micro_steps == self.accumulation:
            self.update()
        return loss.detach()

    def loss(self, batch: Any, compute_loss: ComputeLoss | None = None) -> Tensor:
        """Return the loss of a batch that is already on the device.

        Args:
            batch: of this rank.
            compute_loss: as the workload's, which is the default.
        """
        if self._marks_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self._sharded.sync_gradients(due=self._micro_steps + 1 >= self.accumulation)
        with self.autocast():
            loss = self._sharded.loss(compute_loss or self._compute_loss, batch)
        self._recomputation.after_forward()
        return loss

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the plan's precision for the forward pass."""
        return precision.autocast(self.device.type, self._autocast_dtype)

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients of `loss`, averaged over the accumulation and scaled for fp16.

        Raises:
            InvalidPlanError: in the first step, when checkpointing changes the training; when this
                rank left out parameters whose gradients the other ranks wait for.
        """
        if self.accumulation > 1:
            loss = loss / self.accumulation
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()
        self._sharded.check_after_backward()
        self._recomputation.after_backward()
        self._micro_steps += 1

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradients' norm before `update`, as `torch.nn.utils.clip_grad_norm_` does.

        That function by itself would see fp16's gradients scaled, and under FSDP only the parts
        of gradients on one rank.

        Returns:
            The norm over all parameters and ranks, before it was clipped.
        """
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        norm: Any = nn.utils.clip_grad_norm_(parameters, max_norm)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP
        return whole

    def update(self) -> None:
        """Step the optimizer and clear the gradients."""
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad()
        self._micro_steps = 0

    def move(self, batch: Any) -> Any:
        """Return the batch on the device: tensors in tuples, lists, dicts, or what has `to`."""
        return moved(batch, self.device, self._move_tensor)

    def _move_tensor(self, tensor: Tensor) -> Tensor:
        memory_format = self._image_format if is_images(tensor) else torch.preserve_format
        return tensor.to(self.device, non_blocking=self._non_blocking, memory_format=memory_format)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the states of `model` and `optimizer`.

        Under fp16 that is `scaler`, the state of its gradient scaler; otherwise the dict is empty.
        Gradients between two calls of `update` are in no state dict, so save after one.
        """
        return {} if self._scaler is None else {_SCALER: self._scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned, also under another plan.

        What that plan has no use for is left out; what it needs and `state` lacks begins anew.

        Raises:
            UsageError: for a key that `state_dict` never returns.
        """
        unknown = next((key for key in state if key != _SCALER), None)
        if unknown is not None:
            raise UsageError(
                f"{unknown!r} is nothing that a step keeps; give load_state_dict what "
                "step.state_dict() returned, and the states of model and optimizer to their own"
            )
        if self._scaler is not None and _SCALER in state:
            self._scaler.load_state_dict(state[_SCALER])

    def close(self) -> None:
        """Restore process-wide settings, and free a recorded step."""
        self._recorded = None
        self._settings.close()

    def __enter__(self) -> Self:
        """Return the step."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the step."""
        self.close()
