"""A deep, narrow network on a table: handwritten digits as rows of 64 numbers.

Each of its 17 layers is so small that a GPU spends its time starting kernels, not computing.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

WIDTH = 256
LAYERS = 17
COPIES = 64
HELD_OUT = 297
BATCH_SIZE = 128


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


class DeepMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)


class Table(Dataset):
    """Rows in memory; a whole batch of them is one copy."""

    def __init__(self, rows, labels):
        self.rows = rows
        self.labels = labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]

    def __getitems__(self, indices):
        indices = torch.tensor(indices)
        return self.rows.index_select(0, indices), self.labels.index_select(0, indices)


def collate_fn(batch):
    """`Table.__getitems__` gives batches already."""
    return batch


def digits():
    rows, labels = load_digits(return_X_y=True)
    return torch.tensor(rows, dtype=torch.float32) / 16, torch.tensor(labels)


def build_model():
    return DeepMLP()


def build_dataset():
    rows, labels = digits()
    rows, labels = rows[:-HELD_OUT], labels[:-HELD_OUT]
    noisy = rows.repeat(COPIES, 1)
    return Table(noisy + 0.1 * torch.randn_like(noisy), labels.repeat(COPIES))


def compute_loss(model, batch):
    rows, labels = batch
    return F.cross_entropy(model(rows), labels)


@torch.no_grad()
def evaluate(model):
    """Accuracy on rows that training does not see."""
    rows, labels = digits()
    device = next(model.parameters()).device
    predicted = model(rows[-HELD_OUT:].to(device)).argmax(dim=1).cpu()
    return (predicted == labels[-HELD_OUT:]).float().mean().item()
