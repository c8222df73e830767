"""Functions run on two real gloo ranks: processes forked from a server that has imported torch."""

import multiprocessing
import queue
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from autotune.dispatch.fork_client import LATER_IMPORTS
from autotune.trials.process_group import Ranks, join
from autotune.trials.request import RankPlace

# DDP and FSDP import the compiler, which takes seconds: the server does it for all ranks.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["tests.trials.two_ranks", "autotune.trials.rank", *LATER_IMPORTS, "torch.distributed.fsdp"]
)


def on_two_ranks(
    entry: Callable[..., Any], *args: Any, within_s: float = 300.0, apart_s: float = 20.0
) -> list[Any]:
    """Return what `entry(place, *args)` gives on each rank; None for one that died or hung.

    Args:
        entry: a function that can be pickled.
        args: of the function, after the place of the rank.
        within_s: both ranks are ended after this long.
        apart_s: the second rank is ended this long after the first has an answer. A rank whose
            peer has one has seconds left, as in a real trial.
    """
    port, results = free_port(), _PROCESSES.Queue()
    processes = [
        _PROCESSES.Process(target=_report, args=(results, entry, two(rank, port), args))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    answers = _collect(results, processes, within_s, apart_s)
    for process in processes:
        process.kill()
        process.join()
    return [answers.get(rank) for rank in range(2)]


def _collect(results: Any, processes: Any, within_s: float, apart_s: float) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    end = time.monotonic() + within_s
    while len(answers) < len(processes) and time.monotonic() < end:
        try:
            rank, answer = results.get(timeout=0.1)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
            continue
        if isinstance(answer, _Raised):
            pytest.fail(f"rank {rank}:\n{answer.trace}")
        answers[rank] = answer
        end = min(end, time.monotonic() + apart_s)
    return answers


@dataclass
class _Raised:
    trace: str


def two(rank: int, port: int) -> RankPlace:
    """Return the place of one of two ranks on this machine."""
    return RankPlace(
        rank=rank, world_size=2, local_rank=rank, local_world_size=2, master_port=port
    )


def met(place: RankPlace) -> Ranks:
    """Return the two ranks after they met."""
    return join(place, "cpu", within_s=120.0, collectives_s=120.0)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _report(results: Any, entry: Callable[..., Any], place: RankPlace, args: Any) -> None:
    # As in a rank of a trial: a loader's workers are forked from it, and import nothing anew.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)  # the two share the machine with others
    try:
        results.put((place.rank, entry(place, *args)))
    except Exception:  # noqa: BLE001  the test raises it
        results.put((place.rank, _Raised(traceback.format_exc())))
