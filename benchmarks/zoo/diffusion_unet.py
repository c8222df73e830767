"""A diffusion model: a UNet with attention at its bottom learns which noise was added."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

if torch.cuda.is_available():
    BATCH_SIZE, SIDE, CHANNELS = 32, 64, (128, 256, 384, 512)  # 34 million parameters
else:
    BATCH_SIZE, SIDE, CHANNELS = 4, 16, (16, 32)

STEPS = 1000


class Residual(nn.Module):
    """Two convolutions, told which moment of the diffusion it is."""

    def __init__(self, inputs, outputs, moment):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.moment = nn.Linear(moment, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, moment):
        y = self.conv_1(F.silu(self.norm_1(x)))
        y = y + self.moment(F.silu(moment))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.heads = max(1, channels // 64)
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        split = (batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = self.qkv(self.norm(x)).reshape(split).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(y.reshape(batch, channels, height, width))


class UNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        first, last = channels[0], channels[-1]
        self.width, moment = first, 4 * first
        self.moment = nn.Sequential(nn.Linear(first, moment), nn.SiLU(), nn.Linear(moment, moment))
        self.enter, self.leave = (
            nn.Conv2d(3, first, 3, padding=1),
            nn.Conv2d(first, 3, 3, padding=1),
        )
        pairs = list(zip((first, *channels), channels, strict=False))
        self.down = nn.ModuleList(Residual(a, b, moment) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, stride=2, padding=1) for _, b in pairs)
        self.middle = nn.ModuleList([Residual(last, last, moment), Residual(last, last, moment)])
        self.attention = Attention(last)
        self.up = nn.ModuleList(Residual(2 * b, a, moment) for a, b in reversed(pairs))

    def forward(self, x, t):
        moment = self.moment(self.waves(t))
        x, kept = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, moment)
            kept.append(x)
            x = shrink(x)
        x = self.middle[1](self.attention(self.middle[0](x, moment)), moment)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1), moment)
        return self.leave(x)

    def waves(self, t):
        half = torch.arange(self.width // 2, device=t.device)
        angles = t[:, None] * torch.exp(-math.log(10_000) * half / len(half))
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class Pictures(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.pictures = torch.rand(2048, 3, SIDE, SIDE, generator=generator) * 2 - 1

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index]


def build_model():
    return UNet(CHANNELS)


def build_dataset():
    return Pictures()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=2e-4)


def compute_loss(model, batch):
    t = torch.randint(STEPS, (len(batch),), device=batch.device)
    kept = torch.cos(t / STEPS * math.pi / 2)[:, None, None, None]
    noise = torch.randn_like(batch)
    noisy = kept * batch + (1 - kept**2).sqrt() * noise
    return F.mse_loss(model(noisy, t).float(), noise)
