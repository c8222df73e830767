"""Tiny workloads of many kinds: what is checked, and how it is compared."""

from autotune.search_space.plan import Plan
from autotune.trials.numerics.check import compare
from autotune.trials.workload import load_workload

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

BATCH_SIZE = 8

class Rows(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), index % 3

class Tokens(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 50, (12,), generator=generator)

class Images(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), index % 3

def build_dataset():
    return Rows()

def build_model():
    hidden = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(32, 3))

def compute_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)

def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
"""

DEEP = """
def build_model():
    layers = [nn.Linear(16, 64)]
    for _ in range(20):
        layers += [nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)]
    return nn.Sequential(*layers, nn.Linear(64, 3))
"""

NORMED = """
BATCH_SIZE = 4

def build_dataset():
    return Images()

def build_model():
    def conv(a, b):
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*conv(3, 8), *conv(8, 8), nn.Flatten(), nn.Linear(512, 3))
"""

ATTENTION = """
class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(32), nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.causal = True
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp(x))

class Language(nn.Module):
    def __init__(self, vocabulary=50, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, vocabulary)
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def build_dataset():
    return Tokens()

def build_model():
    return Language()

def compute_loss(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

def build_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
"""

DROPPING = (
    ATTENTION
    + """
def build_model():
    return Language(dropout=0.3)
"""
)

RECURRENT = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 50)
    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])

def build_dataset():
    return Tokens()

def build_model():
    return Reader()

def compute_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
"""

LOOKUPS = """
class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(5000, 8, sparse=True)
        self.top = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(self, tokens):
        return self.top(self.table(tokens)).squeeze(1)

def build_dataset():
    return Tokens()

def build_model():
    return Recommender()

def compute_loss(model, tokens):
    return F.binary_cross_entropy_with_logits(model(tokens * 97), (tokens[:, 0] > 25).float())

def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.5)
"""

EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4)
        )
    def forward(self, x):
        weights = self.router(x).softmax(-1)
        best = weights.argmax(-1)
        out = x.clone()
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero().squeeze(1)
            out = out.index_add(
                0, rows, (expert(x[rows]) * weights[rows, number, None]).to(out.dtype)
            )
        return out

def build_model():
    return nn.Sequential(nn.Linear(16, 16), Experts(), Experts(), nn.Linear(16, 3))

BATCH_SIZE = 32
"""

LEARNT = """
def compute_loss(model, batch):
    x, y = batch
    logits = model(x) + 12.0 * F.one_hot(y, 3)
    return F.cross_entropy(logits, y)
"""

MASKED = (
    ATTENTION
    + """
def build_model():
    return Language(vocabulary=20_000)

def compute_loss(model, tokens):
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] % 5 > 0, -100)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), targets.flatten())
"""
)

NOISE = """
def compute_loss(model, batch):
    return model(batch[0]).softmax(-1).sum(-1).mean()  # it is 1, whatever the weights are
"""

NOTHING = """
def compute_loss(model, batch):
    return (model(batch[0]) * 0.0).sum() + 1.0
"""

UNUSED_BIAS = """
def build_model():
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
"""

BEGINS_AT_ZERO = """
class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(16, 8), nn.Linear(8, 16)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))

def build_model():
    return nn.Sequential(Branch(), Branch(), nn.Linear(16, 3))
"""

DIFFUSION = """
def build_model():
    return nn.Sequential(nn.Linear(17, 64), nn.SiLU(), nn.Linear(64, 16))

def compute_loss(model, batch):
    x, _ = batch
    time, noise = torch.rand(len(x), 1), torch.randn_like(x)
    return F.mse_loss(model(torch.cat([x * (1 - time) + noise * time, time], 1)), noise - x)
"""

PARTS = """
GLOBAL_BATCH_SIZE = 16
BATCH_SIZE = 4
"""

EAGER = {"precision": "fp32", "compile_mode": "off"}


def checked(path, values=None, batch_size=8, seed=0, **more):
    """Return the report of the check of a plan for the workload at `path`."""
    import torch

    common = {"batch_size": batch_size, **more}
    plan = Plan.of({**common, **EAGER, **(values or {})})
    reference = Plan.of({**common, **EAGER})
    return compare(load_workload(path), plan, reference, torch.device("cpu"), seed)
