"""Seeds the random number generators that a workload may use."""

import random
import sys

import torch


def seed_all(seed: int) -> None:
    """Seed torch, Python, and numpy where the workload has imported it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)  # it takes no larger one
