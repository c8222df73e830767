"""Trains a residual MLP with Accelerate.

accelerate launch examples/scripts/accelerate_mlp.py --epochs 1
autotune run --budget 2m -- accelerate launch examples/scripts/accelerate_mlp.py
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    inputs = torch.randn(20_000, 64)
    targets = torch.sin(inputs @ torch.randn(64, 8))
    train = DataLoader(TensorDataset(inputs, targets), batch_size=args.batch_size, shuffle=True)
    valid = DataLoader(TensorDataset(inputs[:1000], targets[:1000]), batch_size=args.batch_size)
    model = nn.Sequential(
        nn.Linear(64, args.width),
        *[Block(args.width) for _ in range(args.depth)],
        nn.Linear(args.width, 8),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = CosineAnnealingLR(optimizer, args.epochs * len(train))
    model, optimizer, train, valid, scheduler = accelerator.prepare(
        model, optimizer, train, valid, scheduler
    )

    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            errors = [F.mse_loss(model(x), y).item() for x, y in valid]
        accelerator.print(f"epoch {epoch}: error {sum(errors) / len(errors):.4f}", flush=True)


if __name__ == "__main__":
    main()
