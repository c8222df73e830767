"""The optimizer of sharding `zero1`, whose state is cut into one part per rank (ZeRO stage 1).

Import it only where it is needed: torch warns of its own package when that is imported.
"""

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from autotune.trials.applying.checkpoints import with_flags_of


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """torch's own, which also keeps its flags of implementation when it loads a state dict.

    Before saving, all ranks call `consolidate_state_dict`, as torch's documentation says.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's part of a consolidated state dict, which stays as it is."""
        # torch sets the other ranks' parts to None in the dict that it is given.
        own = {**state_dict, "state": dict(state_dict["state"])}
        super().load_state_dict(with_flags_of(self, own))
        self._move_step_counts()

    def _move_step_counts(self) -> None:
        """Put counts of steps beside their parameters where the implementation wants them there.

        torch leaves them on the CPU, where fused and capturable kernels cannot read them.
        """
        for group in self.optim.param_groups:
            if not (group.get("fused") or group.get("capturable")):
                continue
            for parameter in group["params"]:
                state = self.optim.state.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(parameter.device, torch.float32)
