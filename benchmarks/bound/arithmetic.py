"""Bound by arithmetic: a few large matrix products, and next to nothing beside them."""

import torch
from common import ON_GPU, dataset, ready_loader
from torch import nn

WIDTH = 8192 if ON_GPU else 512
BATCH_SIZE = 16384 if ON_GPU else 512


def build_model():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])


def build_dataset():
    return dataset(torch.randn(BATCH_SIZE, WIDTH))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def build_optimizer(params):
    return torch.optim.SGD(params, lr=1e-6)


def compute_loss(model, batch):
    return model(batch[0]).mean()
