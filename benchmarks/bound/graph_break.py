"""Not a bound of its own: a print in forward, where the compiler breaks its graph."""

from launches import BATCH_SIZE, WIDTH, build_dataloader, build_dataset, compute_loss
from torch import nn

__all__ = ["BATCH_SIZE", "build_dataloader", "build_dataset", "build_model", "compute_loss"]


class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 10)

    def forward(self, x):
        print("shape", tuple(x.shape))  # here
        return self.linear(x)


def build_model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Talkative())
