"""Bound by memory bandwidth: chains of pointwise operations on large tensors."""

import torch
from common import ON_GPU, dataset, ready_loader
from torch import nn

SIZE = 2**20 if ON_GPU else 2**15
BATCH_SIZE = 64


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.scale + 0.5).abs()


def build_model():
    return nn.Sequential(*[Scaled() for _ in range(8)])


def build_dataset():
    return dataset(torch.randn(BATCH_SIZE, SIZE))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def compute_loss(model, batch):
    return model(batch[0]).mean()
