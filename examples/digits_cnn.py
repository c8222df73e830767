"""A CNN that reads handwritten digits, with the augmentation done in the loader.

Each sample is enlarged, turned, shifted, stretched like rubber and made noisy when it is read.
That takes longer than the network's step, so without loader workers the step waits for its data.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

SIZE = 48
BATCH_SIZE = 32
HELD_OUT = 297


def enlarge(images):
    return F.interpolate(images, size=(SIZE, SIZE), mode="bilinear", align_corners=False)


class AugmentedDigits(Dataset):
    def __init__(self, images, labels):
        self.images = images
        self.labels = labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = enlarge(self.images[index : index + 1])
        grid = turned_and_shifted() + rubber()
        image = F.grid_sample(image, grid, align_corners=False)[0]
        return image + 0.05 * torch.randn_like(image), self.labels[index]


def turned_and_shifted(max_angle=0.3, max_shift=0.15):
    angle = max_angle * (2 * torch.rand(()) - 1)
    shift = max_shift * (2 * torch.rand(2) - 1)
    scale = 1 + 0.2 * (2 * torch.rand(2) - 1)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])]) * scale
    matrix = torch.cat([turn, shift[:, None]], dim=1)
    return F.affine_grid(matrix[None], (1, 1, SIZE, SIZE), align_corners=False)


def rubber(strength=0.6, radius=8):
    """Smooth random displacements: noise blurred along both axes (Simard et al., 2003)."""
    noise = 2 * torch.rand(2, 1, SIZE, SIZE) - 1
    offsets = torch.arange(-2 * radius, 2 * radius + 1)
    kernel = torch.exp(-(offsets**2) / (2 * radius**2))
    kernel = kernel / kernel.sum()
    smooth = F.conv2d(noise, kernel.view(1, 1, -1, 1), padding=(2 * radius, 0))
    smooth = F.conv2d(smooth, kernel.view(1, 1, 1, -1), padding=(0, 2 * radius))
    return strength * smooth.permute(1, 2, 3, 0)


class CNN(nn.Sequential):
    def __init__(self):
        super().__init__(
            *stage(1, 16),
            *stage(16, 32),
            *stage(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )


def stage(channels_in, channels_out):
    convolution = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return images, torch.tensor(labels)


def build_model():
    return CNN()


def build_dataset():
    images, labels = digits()
    return AugmentedDigits(images[:-HELD_OUT], labels[:-HELD_OUT])


def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4)


def compute_loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


@torch.no_grad()
def evaluate(model):
    """Accuracy on digits that training does not see."""
    images, labels = digits()
    device = next(model.parameters()).device
    model.eval()
    predicted = model(enlarge(images[-HELD_OUT:]).to(device)).argmax(dim=1).cpu()
    model.train()
    return (predicted == labels[-HELD_OUT:]).float().mean().item()
