"""A recommender: large tables of embeddings, tiny samples that the loader collates one by one."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

if torch.cuda.is_available():
    BATCH_SIZE, ROWS, WIDTH, HIDDEN = 2048, 200_000, 64, 1024  # 26 tables: 334 million parameters
else:
    BATCH_SIZE, ROWS, WIDTH, HIDDEN = 256, 2_000, 16, 64

NUM_TABLES, NUM_NUMBERS, NUM_CLICKS = 26, 13, 1_000_000


class Recommender(nn.Module):
    """Numbers and categories, each with each multiplied, and a small network on top (DLRM)."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(NUM_TABLES))
        self.numbers = nn.Sequential(
            nn.Linear(NUM_NUMBERS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.ReLU()
        )
        count = NUM_TABLES + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, offset=-1))
        self.top = nn.Sequential(
            nn.Linear(WIDTH + count * (count - 1) // 2, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def forward(self, numbers, categories):
        x = self.numbers(numbers)
        columns = categories.unbind(dim=1)
        looked_up = [table(c) for table, c in zip(self.tables, columns, strict=True)]
        features = torch.stack([x, *looked_up], dim=1)
        products = features @ features.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, chosen], dim=1)).squeeze(1)


class Clicks(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.numbers = torch.rand(10_000, NUM_NUMBERS, generator=generator)
        self.categories = torch.randint(ROWS, (10_000, NUM_TABLES), generator=generator)

    def __len__(self):
        return NUM_CLICKS

    def __getitem__(self, index):
        row = index % len(self.numbers)
        return self.numbers[row], self.categories[row], float(index % 3 == 0)


def build_model():
    return Recommender()


def build_dataset():
    return Clicks()


def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.1)


def compute_loss(model, batch):
    numbers, categories, clicked = batch
    return F.binary_cross_entropy_with_logits(model(numbers, categories), clicked.float())
