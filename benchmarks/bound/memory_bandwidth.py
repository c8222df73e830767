"""Bound by memory bandwidth: chains of pointwise operations on large tensors."""

import torch
from common import ON_GPU, dataset, ready_loader
from torch import nn

SIZE = 2**20 if ON_GPU else 2**15
BATCH_SIZE = 64


class Spread(nn.Module):
    """From one number for each sample to many, so that batches are small and cheap to copy."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        return x * self.weight


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.scale + 0.5).abs()


def build_model():
    return nn.Sequential(Spread(), *[Scaled() for _ in range(8)])


def build_dataset():
    return dataset(torch.randn(BATCH_SIZE, 1))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def compute_loss(model, batch):
    return model(batch[0]).mean()
