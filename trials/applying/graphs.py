"""A training step recorded as one CUDA graph and replayed by one launch.

The host prepares hundreds of kernels for a step; where they are short, the device waits for it
most of the time. A graph holds all of them, from the forward pass to the optimizer: Python does
not run again, only the batch in the graph's input changes. So a step that changes what Python
remembers is not recorded. The procedure is that of torch's
"whole-network capture" (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from autotune.trials.applying.python_state import State, check_unchanged
from autotune.trials.failure import InvalidPlanError, classify
from autotune.trials.result import Outcome

# Real steps before the recording: they make the optimizer's state and what libraries make once.
_STEPS_BEFORE = 3

TrainOn = Callable[[Any], Tensor]


class RecordedStep:
    """Trains as `train` does, after some steps by replaying what it did.

    Args:
        train: takes a batch on the device through forward, backward and optimizer, and returns
            the loss. Any batch of the same shapes must lead to the same operations.
        move: copies a batch to the device.
        look: returns what a step could change in Python.
        optimizer: of `train`. A new learning rate of its groups reaches the recorded step; for
            any other new setting the step is recorded anew.
        device: a CUDA device.
        non_blocking: whether batches are page-locked.
    """

    def __init__(
        self,
        train: TrainOn,
        move: Callable[[Any], Any],
        look: Callable[[], State],
        optimizer: Optimizer,
        device: torch.device,
        *,
        non_blocking: bool,
    ) -> None:
        self._train, self._move, self._look = train, move, look
        self._optimizer = optimizer
        self._device, self._non_blocking = device, non_blocking
        self._stream = torch.cuda.Stream(device)
        self._num_before = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._input: Any = None
        self._rates: list[Tensor] = []
        self._settings: list[dict[str, Any]] = []
        self._state: Mapping[Tensor, Any]
        self._loss: Tensor

    @property
    def is_ready(self) -> bool:
        """Whether the next step is a replay."""
        return self._graph is not None

    def __call__(self, batch: Any) -> Tensor:
        """Train on one batch from the loader and return its loss, on the device.

        Raises:
            InvalidPlanError: when the step cannot be recorded, or does what a replay would not.
        """
        if self._graph is not None and not self._has_settings():
            # Real steps first: what they make of a new state, a graph would make each time.
            self._graph, self._num_before = None, 0
        if self._num_before < _STEPS_BEFORE:
            self._num_before += 1
            train = self._watched if self._num_before == _STEPS_BEFORE else self._beside
            return train(batch)
        if self._graph is not None and not alike(batch, self._input):
            return self._beside(batch)
        if self._graph is None:
            self._graph = self._record(batch)
        else:
            self._refill(batch)
        self._graph.replay()
        return self._loss.clone()  # the next replay overwrites it

    def _beside(self, batch: Any) -> Tensor:
        """Train without the graph, on the stream that it is recorded on."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            loss = self._train(self._move(batch))
        current.wait_stream(self._stream)
        return loss

    def _watched(self, batch: Any) -> Tensor:
        before = self._look()
        loss = self._beside(batch)
        check_unchanged(before, self._look())
        return loss

    def _record(self, batch: Any) -> torch.cuda.CUDAGraph:
        """Return the graph of a step on the batch; recording it trains nothing."""
        check_tensors(batch)
        # Of its own: a batch that is there already may be part of the user's data.
        self._input = tree_map(torch.clone, self._move(batch))
        self._hold_settings()
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads of the loader may allocate page-locked memory meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._loss = self._train(self._input)
        except RuntimeError as error:
            raise _why_not_recorded(error) from error
        return graph

    def _refill(self, batch: Any) -> None:
        for place, new in zip(tree_leaves(self._input), tree_leaves(batch), strict=True):
            place.copy_(new, non_blocking=self._non_blocking)

    def _hold_settings(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self._device)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._state = self._optimizer.state  # `load_state_dict` puts another one in its place
        self._settings = _settings(self._optimizer)

    def _has_settings(self) -> bool:
        """Whether the optimizer is as it was recorded; its rates are put where the graph reads."""
        same_state = self._optimizer.state is self._state
        if not same_state or _settings(self._optimizer) != self._settings:
            return False
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate
        return True


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return what the groups say but for their rates; of parameters, how many."""
    return [
        {k: len(v) if k == "params" else v for k, v in group.items() if k != "lr"}
        for group in optimizer.param_groups
    ]


def _why_not_recorded(error: RuntimeError) -> BaseException:
    """Return the error to raise: what happened in a recording may be the cause of its end."""
    cause = error.__context__ or error
    for one in (error, cause):
        if classify(one) is Outcome.OOM:
            return one
    return InvalidPlanError(
        "the step cannot be recorded as a CUDA graph "
        f"({str(cause).splitlines()[0]}); .item(), .cpu(), printing a tensor and shapes "
        "that depend on values make the host wait, which a graph cannot; use cuda_graph=off"
    )


def check_tensors(batch: Any) -> None:
    """Check that a batch holds nothing but tensors: anything else would never change again.

    Raises:
        InvalidPlanError: when it does.
    """
    others = [leaf for leaf in tree_leaves(batch) if not isinstance(leaf, Tensor)]
    if others:
        raise InvalidPlanError(
            f"the batch holds a value of type {type(others[0]).__name__}; a recorded step reads "
            "new values from tensors only"
        )


def alike(batch: Any, recorded: Any) -> bool:
    """Whether a batch has the structure, shapes and dtypes of the recorded one."""
    return tree_structure(batch) == tree_structure(recorded) and all(
        isinstance(one, Tensor) and one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(tree_leaves(batch), tree_leaves(recorded), strict=True)
    )
