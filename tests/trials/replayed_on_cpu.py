"""CUDA graphs without CUDA: operations are noted, and run again on the tensors that they had."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Noted(TorchDispatchMode):
    def __init__(self, operations: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self._operations = operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        """Run what was noted on the tensors that it was noted on."""
        with torch.no_grad():
            for func, args, kwargs, noted in self.operations:
                given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
                for old, new in zip(
                    tree_leaves(noted), tree_leaves(func(*args, **kwargs)), strict=True
                ):
                    if isinstance(old, Tensor) and id(old) not in given:
                        old.copy_(new)


def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors stand for those on a device, where writing to them is recorded."""
    place = "autotune.trials.applying.python_state._address_and_version"
    monkeypatch.setattr(place, lambda tensor: (tensor.data_ptr(), 0))


def stand_in(
    monkeypatch: pytest.MonkeyPatch, trained: Callable[[], Sequence[Tensor]]
) -> list[Graph]:
    """Put the stand-ins in torch's place; `trained` gives what a recording must not change.

    Returns:
        The graphs that were recorded, as they come.
    """
    on_a_device(monkeypatch)
    graphs: list[Graph] = []

    @contextlib.contextmanager
    def record(graph: Graph, **_: Any) -> Iterator[None]:
        graphs.append(graph)
        held = trained()
        before = [tensor.detach().clone() for tensor in held]
        with _Noted(graph.operations):
            yield
        with torch.no_grad():
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)

    class Stream:
        def __init__(self, *_: Any) -> None:
            pass

        def wait_stream(self, other: Any) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    return graphs
