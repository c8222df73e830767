"""Workloads whose dataset is a stream."""

from autotune.search_space.plan import Plan

PLAN = Plan.of({"batch_size": 4})


STREAM = """
import os, random
from dataclasses import dataclass
from torch.utils.data import IterableDataset, get_worker_info

@dataclass
class Held:
    tensor: torch.Tensor

class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        {order}

def build_dataset():
    return Lines()
"""
