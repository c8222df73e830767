"""The family `graphs`: a training step recorded as one CUDA graph and replayed by one launch.

The host prepares hundreds of kernels for a step; where they are short, the device waits for it
most of the time. A graph holds all of them, from the forward pass to the optimizer: Python does
not run again, only the batch in the graph's input changes. So a step that changes state in Python
is not recorded. The procedure is that of torch's "whole-network capture"
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from autotune.search_space.plan import Plan
from autotune.trials.applying.batch import accumulation
from autotune.trials.applying.python_state import State, check_unchanged
from autotune.trials.applying.settings import Setting
from autotune.trials.failure import InvalidPlanError, classify
from autotune.trials.result import Outcome

# Real steps before the recording. In them the optimizer makes its state, and libraries allocate
# what they keep (torch's documentation warms up for three iterations, too).
_WARM_UP_STEPS = 3

TrainOn = Callable[[Any], Tensor]


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


def is_recorded(plan: Plan, device: torch.device) -> bool:
    """Whether steps under the plan are recorded; with accumulation a step is several calls."""
    is_wanted = plan.get("cuda_graph", "off") == "step" and device.type == "cuda"
    return is_wanted and accumulation(plan) == 1


class RecordedStep:
    """Trains as `train` does: some steps by calling it, all later ones by replaying a graph.

    Args:
        train: takes a batch on the device through forward, backward and optimizer, and returns
            the loss. Any batch of the same shapes must lead to the same operations.
        move: copies a batch to the device.
        python_state: returns the state in Python that a step could change.
        optimizer: of `train`. A new learning rate of its groups reaches the recorded step; after
            any other change of its settings the step is recorded anew.
        device: a CUDA device.
        non_blocking: whether batches are page-locked.
    """

    def __init__(
        self,
        train: TrainOn,
        move: Callable[[Any], Any],
        python_state: Callable[[], State],
        optimizer: Optimizer,
        device: torch.device,
        *,
        non_blocking: bool,
    ) -> None:
        self._train, self._move, self._python_state = train, move, python_state
        self._optimizer = optimizer
        self._device, self._non_blocking = device, non_blocking
        self._stream = torch.cuda.Stream(device)
        self._num_warmed_up = 0
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
        if self._graph is not None and not self._has_recorded_settings():
            # Real steps first: the optimizer makes its state in the first one, and a graph of that
            # step would make it anew in each replay.
            self._graph, self._num_warmed_up = None, 0
        if self._num_warmed_up < _WARM_UP_STEPS:
            self._num_warmed_up += 1
            is_last = self._num_warmed_up == _WARM_UP_STEPS
            return self._train_checked(batch) if is_last else self._train_eagerly(batch)
        if self._graph is not None and not has_same_shapes(batch, self._input):
            return self._train_eagerly(batch)
        if self._graph is None:
            self._graph = self._record(batch)
        else:
            self._refill(batch)
        self._graph.replay()
        return self._loss.clone()  # the next replay overwrites it

    def _train_eagerly(self, batch: Any) -> Tensor:
        """Train without the graph, on the stream on which it is recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            loss = self._train(self._move(batch))
        current.wait_stream(self._stream)
        return loss

    def _train_checked(self, batch: Any) -> Tensor:
        """Train without the graph, and check that the step changes no state in Python."""
        before = self._python_state()
        loss = self._train_eagerly(batch)
        check_unchanged(before, self._python_state())
        return loss

    def _record(self, batch: Any) -> torch.cuda.CUDAGraph:
        """Return the graph of a step on the batch; recording it trains nothing."""
        check_tensors(batch)
        # A copy, as a batch that is on the device already may be part of the user's data.
        self._input = tree_map(torch.clone, self._move(batch))
        self._keep_settings()
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads of the loader may allocate page-locked memory meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._loss = self._train(self._input)
        except RuntimeError as error:
            raise _recording_error(error) from error
        return graph

    def _refill(self, batch: Any) -> None:
        for tensor, new in zip(tree_leaves(self._input), tree_leaves(batch), strict=True):
            tensor.copy_(new, non_blocking=self._non_blocking)

    def _keep_settings(self) -> None:
        """Note the optimizer's settings, with learning rates as tensors that the graph reads."""
        for group in self._optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self._device)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._state = self._optimizer.state  # `load_state_dict` puts another one in its place
        self._settings = _settings(self._optimizer)

    def _has_recorded_settings(self) -> bool:
        """Whether the optimizer is as it was recorded; new learning rates go into the graph."""
        same_state = self._optimizer.state is self._state
        if not same_state or _settings(self._optimizer) != self._settings:
            return False
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate
        return True


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of the groups without learning rates; of parameters, how many."""
    return [
        {k: len(v) if k == "params" else v for k, v in group.items() if k != "lr"}
        for group in optimizer.param_groups
    ]


def _recording_error(error: RuntimeError) -> BaseException:
    """Return the error to raise: lack of memory as it is, anything else as an invalid plan.

    torch reports the end of the recording; what ended it is the context of that error.
    """
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
    """Check that a batch holds nothing but tensors: a replay would keep anything else as it was.

    Raises:
        InvalidPlanError: when it does.
    """
    others = [leaf for leaf in tree_leaves(batch) if not isinstance(leaf, Tensor)]
    if others:
        raise InvalidPlanError(
            f"the batch holds a value of type {type(others[0]).__name__}; a recorded step reads "
            "new values from tensors only"
        )


def has_same_shapes(batch: Any, recorded: Any) -> bool:
    """Whether a batch has the structure, shapes and dtypes of the recorded one."""
    return tree_structure(batch) == tree_structure(recorded) and all(
        isinstance(one, Tensor) and one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(tree_leaves(batch), tree_leaves(recorded), strict=True)
    )
