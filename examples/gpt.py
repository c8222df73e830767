"""A GPT that learns to write Python from the source of Python's standard library, byte by byte.

With a GPU it is GPT-2 small: 124 million parameters, 1024 tokens. Without, a small one.
"""

import os
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset


class Size(NamedTuple):
    layers: int
    heads: int
    width: int
    tokens: int
    vocabulary: int = 50257  # GPT-2's; bytes use the first 256, so the cost is that of a real GPT


if torch.cuda.is_available():
    SIZE = Size(layers=12, heads=12, width=768, tokens=1024)
else:
    SIZE = Size(layers=4, heads=4, width=64, tokens=64, vocabulary=256)

BATCH_SIZE = 16
TOKENS_PER_SAMPLE = SIZE.tokens


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))

    def attention(self, x):
        batch, tokens, width = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(batch, tokens, width))


class GPT(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.apply(initialise)
        self.head.weight = self.tokens.weight

    def forward(self, inputs, targets):
        position = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.tokens(inputs) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initialise(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class SourceCode(Dataset):
    """Windows of as many bytes as the model takes, every 64 bytes one, and what follows them."""

    STRIDE = 64

    def __init__(self, text, tokens):
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.tokens = tokens

    def __len__(self):
        return (len(self.text) - self.tokens - 1) // self.STRIDE

    def __getitem__(self, index):
        start = index * self.STRIDE
        window = self.text[start : start + self.tokens + 1].long()
        return window[:-1], window[1:]


def standard_library():
    folder = Path(os.__file__).parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def build_model():
    return GPT(SIZE)


def build_dataset():
    text = standard_library()
    return SourceCode(text[: len(text) * 9 // 10], SIZE.tokens)


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)


def compute_loss(model, batch):
    return model(*batch)


@torch.no_grad()
def evaluate(model):
    """Minus the nats per byte on the last tenth of the text, which training does not see."""
    text = standard_library()
    held_out = SourceCode(text[len(text) * 9 // 10 :], SIZE.tokens)
    device = next(model.parameters()).device
    picked = [held_out[i] for i in range(0, len(held_out), len(held_out) // 16)]
    inputs, targets = (torch.stack(column).to(device) for column in zip(*picked, strict=True))
    return -model(inputs, targets).item()
