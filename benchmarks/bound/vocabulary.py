"""Not a bound of its own: 50257 words, a side that tensor cores cannot read in their units."""

import torch
from common import dataset, ready_loader
from torch import nn

BATCH_SIZE = 8
WORDS, WIDTH, LENGTH = 50257, 64, 8


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.words(tokens))


def build_model():
    return Tied()


def build_dataset():
    return dataset(torch.randint(WORDS, (64, LENGTH)))


def build_dataloader(data, **kwargs):
    return ready_loader(data, kwargs["batch_size"])


def compute_loss(model, batch):
    tokens = batch[0]
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
