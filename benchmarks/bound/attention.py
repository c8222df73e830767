"""Not a bound of its own: attention by hand, which writes its scores to memory."""

import torch
from common import ON_GPU, dataset, ready_loader
from torch import nn

BATCH_SIZE = 4
HEADS, WIDTH, LENGTH = (16, 1024, 1024) if ON_GPU else (2, 32, 128)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT) * (WIDTH // HEADS) ** -0.5
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        mixed = weights @ v  # here
        return x + mixed.transpose(1, 2).flatten(2)


def build_model():
    return nn.Sequential(*(Attention() for _ in range(4)))


def build_dataset():
    return dataset(torch.randn(64, LENGTH, WIDTH))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def compute_loss(model, batch):
    return model(batch[0]).square().mean()
