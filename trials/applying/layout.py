"""The family `layout`: the memory format of images, and cuDNN's choice of convolutions."""

import torch
from torch import Tensor, nn

from autotune.search_space.plan import Plan
from autotune.trials.applying.settings import Setting, attribute_set


def process_settings(plan: Plan) -> list[Setting]:
    """Return the setting that lets cuDNN time its convolutions, where the plan asks for it."""
    if not plan.get("cudnn_benchmark", False):
        return []
    return [attribute_set(torch.backends.cudnn, "benchmark", value=True)]


def in_memory_format(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the model with its parameters in the plan's memory format."""
    if not _is_channels_last(plan):
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def image_format(plan: Plan) -> torch.memory_format:
    """Return the memory format of batches of images under the plan."""
    return torch.channels_last if _is_channels_last(plan) else torch.preserve_format


def is_images(tensor: Tensor) -> bool:
    """Whether a tensor of a batch may hold images: samples, channels, height and width."""
    return tensor.dim() == 4 and tensor.is_floating_point()


def _is_channels_last(plan: Plan) -> bool:
    return plan.get("memory_format", "contiguous") == "channels_last"
