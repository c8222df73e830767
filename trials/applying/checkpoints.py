"""Keeps what a plan set in an optimizer when it loads a checkpoint.

torch stores an optimizer's `fused`, `foreach` and `capturable` in its state dict, and loading puts
the stored ones in the place of the optimizer's own. A checkpoint of a training without the plan,
or under another, would so undo the plan without a word.
"""

from typing import Any

from torch.optim import Optimizer

# Which code takes a step, and nothing of what it computes.
_FLAGS = ("foreach", "fused", "capturable")


def keep_implementation(optimizer: Optimizer) -> None:
    """Let the optimizer keep its flags of implementation whenever it loads a state dict."""
    # Before, not after: the flags also decide on which device torch puts the counts of steps.
    optimizer.register_load_state_dict_pre_hook(with_flags_of)


def with_flags_of(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict with the flags that the optimizer's groups have now."""
    own, loaded = optimizer.param_groups, state_dict["param_groups"]
    if len(own) != len(loaded):
        return state_dict  # torch itself refuses it, and says why
    pairs = zip(loaded, own, strict=True)
    return {**state_dict, "param_groups": [group | _flags(ours) for group, ours in pairs]}


def _flags(group: dict[str, Any]) -> dict[str, Any]:
    return {flag: group[flag] for flag in _FLAGS if flag in group}
