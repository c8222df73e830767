"""Checks in the first backward pass that running checkpointed blocks again changes no state."""

import itertools
from collections.abc import Iterator

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from autotune.search_space.plan import Plan
from autotune.trials.applying.memory import NUM_BATCHES, is_checkpointed, keeps_statistics
from autotune.trials.applying.writes import TensorVersion, version_of
from autotune.trials.failure import InvalidPlanError

_SIMPLE = (bool, int, float, complex, str)

_Place = tuple[nn.Module, str, str]  # a module, and the kind and name of what it holds
_State = TensorVersion | bool | int | float | complex | str


class RecomputationCheck:
    """Compares the state of the checkpointed blocks before and after the first backward pass.

    Later passes are not checked, and cost nothing.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self._blocks = [m for m in model.modules() if isinstance(m, CheckpointWrapper)]
        self._is_done = not is_checkpointed(plan)
        self._before: dict[_Place, _State] = {}

    def after_forward(self) -> None:
        """Note the state of the blocks."""
        if not self._is_done:
            self._before = self._state()

    def after_backward(self) -> None:
        """Compare the state of the blocks with that after the forward pass.

        Raises:
            InvalidPlanError: naming what changed as blocks were run again.
        """
        if self._is_done:
            return
        now, self._is_done = self._state(), True
        for place, before in self._before.items():
            if not _is_same(before, now.get(place)):
                _, kind, name = place
                raise InvalidPlanError(
                    f"a block's forward pass writes to its {kind} {name}, which checkpointing "
                    "would do twice in each step; use activation_checkpointing=none"
                )
        self._before = {}

    def _state(self) -> dict[_Place, _State]:
        modules = itertools.chain.from_iterable(block.modules() for block in self._blocks)
        return {place: held for module in modules for place, held in _state_of(module)}


def _is_same(before: _State, now: _State | None) -> bool:
    if isinstance(before, TensorVersion) and isinstance(now, TensorVersion):
        return before.is_same(now)
    return before is now or before == now  # NaN is only itself


def _state_of(module: nn.Module) -> Iterator[tuple[_Place, _State]]:
    """Yield the module's own buffers and its attributes of simple types."""
    for name, buffer in module.named_buffers(recurse=False):
        # While it is recomputed, a norm writes the same statistics again.
        if name == NUM_BATCHES or not keeps_statistics(module):
            yield (module, "buffer", name), version_of(buffer)
    for name, value in vars(module).items():
        if isinstance(value, _SIMPLE):
            yield (module, "attribute", name), value
