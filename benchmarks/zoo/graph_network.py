"""A graph network of torch_geometric on molecules: each batch has graphs of other sizes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_mean_pool

if torch.cuda.is_available():
    BATCH_SIZE, WIDTH, LAYERS = 128, 256, 5
else:
    BATCH_SIZE, WIDTH, LAYERS = 16, 32, 3

NUM_ATOMS, NUM_BONDS, NUM_MOLECULES = 32, 4, 20_000


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms = nn.Embedding(NUM_ATOMS, WIDTH)
        self.bonds = nn.Embedding(NUM_BONDS, WIDTH)
        self.convolutions = nn.ModuleList(GINEConv(self.mlp()) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    @staticmethod
    def mlp():
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, molecules):
        x, bonds = self.atoms(molecules.x), self.bonds(molecules.edge_attr)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + F.relu(norm(convolution(x, molecules.edge_index, bonds)))
        pooled = global_mean_pool(x, molecules.batch, size=molecules.num_graphs)
        return self.head(pooled).squeeze(1)


class Molecules(Dataset):
    """Chains of 10 to 40 atoms with a few more bonds across."""

    def __len__(self):
        return NUM_MOLECULES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        size = int(torch.randint(10, 41, (), generator=generator))
        chain = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        across = torch.randint(size, (2, size // 4), generator=generator)
        bonds = torch.cat([chain, across], dim=1)
        edges = torch.cat([bonds, bonds.flip(0)], dim=1)
        atoms = torch.randint(NUM_ATOMS, (size,), generator=generator)
        kinds = torch.randint(NUM_BONDS, (edges.shape[1],), generator=generator)
        return Data(x=atoms, edge_index=edges, edge_attr=kinds, y=atoms.float().mean()[None])


def collate_fn(molecules):
    return Batch.from_data_list(molecules)


def build_model():
    return Network()


def build_dataset():
    return Molecules()


def build_optimizer(params):
    return torch.optim.Adam(params, lr=1e-3)


def compute_loss(model, batch):
    return F.l1_loss(model(batch), batch.y)
