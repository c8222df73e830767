"""The memory format reaches all that it is meant for."""

import torch

from tests.trials.applying.steps import step_of

CONV = """
def build_model():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 3))

def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x.view(-1, 1, 4, 4)), y)
"""


def test_channels_last_reaches_parameters_and_batches(write_workload):
    """Both sides of a convolution have the layout."""
    step = step_of(write_workload(CONV), {"memory_format": "channels_last"})
    image = step.move({"image": torch.randn(2, 3, 8, 8)})["image"]
    assert image.is_contiguous(memory_format=torch.channels_last)
    weight = next(step.model.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last)
