"""Batches on their way to the device."""

import collections
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pack_sequence

from autotune.trials.applying.apply import build_step
from autotune.trials.workload import load_workload
from tests.trials.streams import PLAN


class Pair(NamedTuple):
    left: Any
    right: Any


def test_batches_of_many_kinds_are_moved(write_workload):
    """Each stays what it is: what moves itself, named tuples, dicts of a class with a default."""
    step = build_step(load_workload(write_workload()), PLAN, torch.device("meta"), seed=0)
    packed = step.move(pack_sequence([torch.ones(3), torch.ones(2)]))
    assert packed.data.is_meta
    named = step.move(Pair(torch.ones(1), [torch.ones(1), "word"]))
    assert named.left.is_meta
    assert named.right[1] == "word"
    by_name = step.move(collections.defaultdict(list, x=torch.ones(1)))
    assert by_name["x"].is_meta
    assert by_name["y"] == []
