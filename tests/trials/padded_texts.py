"""A workload whose samples are texts of uneven length, padded to the longest of a batch."""

PADDED_TEXTS = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

BATCH_SIZE = 4
LENGTHS = [1 + 7 * index % 31 for index in range(64)]

class Texts(Dataset):
    def __len__(self):
        return len(LENGTHS)
    def __getitem__(self, index):
        return torch.full((LENGTHS[index],), 1 + index % 50)

def collate_fn(texts):
    return {"words": pad_sequence(texts, batch_first=True)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(64, 16, padding_idx=0), nn.Linear(16, 1)
    def forward(self, words):
        return self.out(torch.tanh(self.words(words))).mean()

def build_model():
    return Model()

def build_dataset():
    return Texts()

def compute_loss(model, batch):
    return model(batch["words"])
"""
