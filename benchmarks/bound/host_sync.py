"""Not a bound of its own: a loss that reads values of the device in each step."""

from launches import BATCH_SIZE, build_dataloader, build_dataset, build_model
from torch import nn

__all__ = ["BATCH_SIZE", "build_dataloader", "build_dataset", "build_model", "compute_loss"]

seen = []


def compute_loss(model, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    seen.append(loss.item())  # here
    return loss
