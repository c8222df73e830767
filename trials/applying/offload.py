"""The family `offload`: what waits in the memory of the host instead of that of the GPU.

Parameters, with gradients and the optimizer's state, are moved by FSDP; see `fully_sharded`.
Activations are moved here. Each block's are copied as they are saved, on a stream of their own
beside the kernels of the next block, and let go of when the block after that begins. In the
backward pass the first of them that a block asks for brings those of the block before it, too, so
that they arrive while this block's kernels run. The last block keeps its own, which are needed at
once.

Memory of the device is always allocated and freed on the stream that computes, which waits for the
copies: torch's allocator can give it away at once, however far the host is ahead of the device.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from autotune.search_space.knobs.offload import offloads_activations
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import check_found, replace_module
from autotune.trials.applying.settings import Setting

LEAST_BYTES = 2**20
"""The smallest tensor that is moved: a copy of fewer bytes takes about as long."""


def process_settings(plan: Plan) -> list[Setting]:
    """Return no setting: no knob of this family is process-wide."""
    return []


def offload_blocks(model: nn.Module, blocks: list[nn.Module], plan: Plan) -> list[nn.Module]:
    """Wrap all blocks but the last, so that their activations wait in the host's memory.

    Returns:
        The blocks, wrapped or as they were.
    """
    if not offloads_activations(plan):
        return blocks
    check_found(blocks, f"activation_offload={plan['activation_offload']}")
    mover = _Mover()
    wrapped: list[nn.Module] = []
    for block in blocks[:-1]:
        wrapped.append(_Offloaded(block, mover))
        replace_module(model, block, wrapped[-1])
    return [*wrapped, blocks[-1]]


class _Offloaded(ActivationWrapper):
    """A block whose activations wait in the host's memory; its names in the state dict stay."""

    def __init__(self, block: nn.Module, mover: "_Mover") -> None:
        super().__init__(block)  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._mover = mover

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        saved = self._mover.begin_block()
        with saved_tensors_hooks(saved.pack, saved.unpack):
            return self._checkpoint_wrapped_module(*args, **kwargs)


class _Mover:
    """Moves the activations of one model after another block.

    Attributes:
        latest: what the last block that ran has saved, None before the first.
    """

    def __init__(self) -> None:
        self.latest: weakref.ref[_SavedByBlock] | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy of the model move its activations by itself."""
        return _Mover, ()

    def begin_block(self) -> "_SavedByBlock":
        """Return what will hold the activations of a block that begins to run.

        Those of the block two before it are on the host by now, or computing waits for them.
        """
        last = None if self.latest is None else self.latest()
        if last is not None and last.block_before is not None:
            last.block_before.let_go()
        saved = _SavedByBlock(self, self.latest)
        self.latest = weakref.ref(saved)
        return saved

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """Return the stream of the copies, None on a CPU."""
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


class _Copy:
    """A tensor that is copied to the host, and back when it is asked for.

    Attributes:
        on_device: the tensor, while it is there or on its way back; None while only the host has
            it.
        on_host: its copy, page-locked where the device is a GPU.
    """

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream | None) -> None:
        """Begin to copy the tensor to the host, on `stream` if its device is a GPU."""
        self.on_device: Tensor | None = tensor
        self.on_host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._device, self._stream = tensor.device, stream
        self._through = self._copy(self.on_host, tensor)

    def _copy(self, to: Tensor, source: Tensor) -> torch.cuda.Event | None:
        """Copy after what computes now; return when it is through, None on a CPU."""
        if self._stream is None:
            to.copy_(source)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
        through: torch.cuda.Event = self._stream.record_event()
        return through

    def _wait(self) -> None:
        """Let what computes from now on wait for the latest copy."""
        if self._through is not None:
            torch.cuda.current_stream(self._device).wait_event(self._through)

    def let_go(self) -> None:
        """Free the device's memory once the host has the tensor."""
        self._wait()
        self.on_device = None

    def begin_return(self) -> None:
        """Begin to copy the tensor back, unless the device has it or it is on its way."""
        if self.on_device is None:
            self.on_device = torch.empty_like(self.on_host, device=self._device)
            self._through = self._copy(self.on_device, self.on_host)

    def take(self) -> Tensor:
        """Return the tensor on its device; from now on the backward pass alone keeps it there."""
        self.begin_return()
        self._wait()
        tensor, self.on_device = self.on_device, None
        assert tensor is not None
        return tensor

    def __del__(self) -> None:
        """Wait for a copy that nobody asked for: its memory may be given away now."""
        if self.on_device is not None:
            self._wait()


class _SavedByBlock:
    """The activations that one block saved in one forward pass."""

    def __init__(self, mover: _Mover, before: "weakref.ref[_SavedByBlock] | None") -> None:
        self._mover, self._before = mover, before
        self._copies: list[_Copy] = []
        self._is_returning = False

    def pack(self, tensor: Tensor) -> "Tensor | tuple[_SavedByBlock, _Copy]":
        """Return what autograd keeps for a tensor: a copy on the host of a large activation."""
        if not _is_large_activation(tensor):
            return tensor
        copy = _Copy(tensor.detach(), self._mover.stream(tensor.device))
        self._copies.append(copy)
        return self, copy

    @staticmethod
    def unpack(kept: "Tensor | tuple[_SavedByBlock, _Copy]") -> Tensor:
        """Return the tensor, and begin to bring those of the block before, needed next."""
        if isinstance(kept, Tensor):
            return kept
        saved, copy = kept
        tensor = copy.take()
        if (before := saved.block_before) is not None:
            before.begin_return()
        return tensor

    @property
    def block_before(self) -> "_SavedByBlock | None":
        """What the block before this one saved, None for the first and once that is of no use."""
        return None if self._before is None else self._before()

    def let_go(self) -> None:
        """Free the device's memory of the block's activations, which the host has."""
        for copy in self._copies:
            copy.let_go()

    def begin_return(self) -> None:
        """Begin to copy the block's activations back, the first time that this is called."""
        if not self._is_returning:
            self._is_returning = True
            for copy in self._copies:
                copy.begin_return()


def _is_large_activation(tensor: Tensor) -> bool:
    """Whether it is worth moving: parameters stay, and so do their casts to half precision."""
    if type(tensor) is not Tensor or tensor.numel() * tensor.element_size() < LEAST_BYTES:
        return False
    whole = tensor if tensor._base is None else tensor._base  # noqa: SLF001  torch documents it
    return not (isinstance(whole, nn.Parameter) or _is_cast_of_parameter(whole))


def _is_cast_of_parameter(tensor: Tensor) -> bool:
    made_of = tensor.grad_fn.next_functions if tensor.grad_fn is not None else ()
    if len(made_of) != 1:
        return False
    source = getattr(made_of[0][0], "variable", None)
    return isinstance(source, nn.Parameter) and source.shape == tensor.shape
