"""Trains a small convolutional net with Lightning.

python examples/scripts/lightning_digits.py --epochs 1
autotune run --budget 2m -- python examples/scripts/lightning_digits.py
"""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """Noisy images with a bright bar at one of ten heights."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = 0.3 * torch.randn(3, 40, 40, generator=generator)
        label = index % 10
        image[:, 4 * label : 4 * label + 4] += 1
        return image, label


class Digits(L.LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers: list[nn.Module] = []
        for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        self.net = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(100 * width, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("valid_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--num_workers", type=int, default=0)
    args = parser.parse_args()
    L.seed_everything(0)
    train = DataLoader(
        Images(6400), batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers
    )
    valid = DataLoader(Images(320), batch_size=64, num_workers=args.num_workers)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        default_root_dir="runs/lightning",
    )
    trainer.fit(Digits(), train, valid)


if __name__ == "__main__":
    main()
