"""The arithmetic in torch's scaled_dot_product_attention, whose kernel a plan may choose."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from autotune.trials.applying.settings import attribute_set

Share = Callable[[], float | None]
# A backward pass has two products for each of the forward pass.
_PASSES = 3


class AttentionCalls(TorchFunctionMode):
    """Counts the work of the calls of attention, forward and backward.

    Attributes:
        flops: of these calls, as if no mask left anything out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the function, and count it."""
        if func is scaled_dot_product_attention:
            return self._counted(*args, **(kwargs or {}))
        if func is not multi_head_attention_forward:
            return func(*args, **(kwargs or {}))
        # A mode does not see what the functions that it sees call in turn.
        with attribute_set(functional, "scaled_dot_product_attention", value=self._counted):
            return func(*args, **(kwargs or {}))

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        self.flops += _PASSES * _forward_flops(*_operands(args, kwargs))
        return scaled_dot_product_attention(*args, **kwargs)


@contextlib.contextmanager
def attention_share() -> Iterator[Share]:
    """Count forward passes on the CPU; what is yielded returns attention's share of their FLOPs.

    It is None where no product was counted. The CPU's own kernel of attention is none that the
    counter of FLOPs knows, so attention is added to what it counts.
    """
    with AttentionCalls() as attention, FlopCounterMode(display=False) as counter:
        yield lambda: _share(attention.flops, _PASSES * counter.get_total_flops())


def _share(in_attention: float, elsewhere: float) -> float | None:
    counted = in_attention + elsewhere
    return in_attention / counted if counted else None


def _operands(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    named = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    return named["query"], named["key"], named["value"]


def _forward_flops(query: Tensor, key: Tensor, value: Tensor) -> float:
    """Return the FLOPs of the scores, and of the values that are weighed by them."""
    num_scores = query.numel() // query.shape[-1] * key.shape[-2]
    return 2.0 * num_scores * (query.shape[-1] + value.shape[-1])
