"""Bound by launches: hundreds of layers, each too small to be worth starting."""

import torch
from common import dataset, ready_loader
from torch import nn

BATCH_SIZE = 4
WIDTH = 16


def build_model():
    layers = [m for _ in range(100) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def build_dataset():
    return dataset(torch.randn(64, WIDTH), torch.randint(10, (64,)))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
