"""The GPT of gpt.py with 350 million parameters and 1024 tokens, for several GPUs.

Without a GPU it is as small as that one.
"""

import gpt
import torch
from gpt import Size, build_optimizer, compute_loss, evaluate

__all__ = ["build_optimizer", "compute_loss", "evaluate"]

if torch.cuda.is_available():
    SIZE = Size(layers=24, heads=16, width=1024, tokens=1024)
else:
    SIZE = gpt.SIZE

BATCH_SIZE = 16
TOKENS_PER_SAMPLE = SIZE.tokens


def build_model():
    return gpt.GPT(SIZE)


def build_dataset():
    return gpt.SourceCode(gpt.standard_library(), SIZE.tokens)
