"""Trains a small transformer on sequences with a plain PyTorch loop.

Run it by itself, or tune it as it is:

    python examples/scripts/plain.py --epochs 1
    autotune run --budget 2m -- python examples/scripts/plain.py
"""

import argparse
import copy
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--train-size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/plain"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Noisy sums of sines; the class is the number of sines."""

    def __init__(self, size: int, length: int = 64, channels: int = 8) -> None:
        self.size, self.length, self.channels = size, length, channels

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        count = index % 10
        time_axis = torch.linspace(0, 1, self.length)
        frequencies = torch.rand(count + 1, self.channels, generator=generator) * 40
        waves = torch.sin(2 * math.pi * frequencies[:, None] * time_axis[None, :, None]).sum(0)
        noise = 0.1 * torch.randn(self.length, self.channels, generator=generator)
        return waves + noise, torch.tensor(count)


class Classifier(nn.Module):
    def __init__(self, width: int, layers: int, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(channels, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float = 0.999) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - decay)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    right = total = 0
    for x, y in loader:
        right += int((model(x.to(device)).argmax(1).cpu() == y).sum())
        total += len(y)
    model.train()
    return right / total


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)

    train = DataLoader(
        Sequences(args.train_size), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    valid = DataLoader(Sequences(256), batch_size=64)
    model = Classifier(args.width, args.layers).to(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total_steps = args.epochs * len(train) // args.grad_accum
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps + 1)

    step, samples, started = 0, 0, time.perf_counter()
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(train):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            (loss / args.grad_accum).backward()
            samples += len(y)
            if (i + 1) % args.grad_accum:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            update_average(average, model)
            step += 1
            if step % 50 == 0:
                rate = samples / (time.perf_counter() - started)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)
                samples, started = 0, time.perf_counter()
        print(f"epoch {epoch}: accuracy {accuracy(average, valid, device):.3f}", flush=True)
        state = {"model": model.state_dict(), "average": average.state_dict()}
        torch.save({**state, "optimizer": optimizer.state_dict()}, args.out / "last.pt")
        samples, started = 0, time.perf_counter()


if __name__ == "__main__":
    main()
