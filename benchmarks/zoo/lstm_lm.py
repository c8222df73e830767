"""A recurrent language model: word embeddings, an LSTM, a tied output."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

if torch.cuda.is_available():
    BATCH_SIZE, TOKENS, WIDTH, VOCABULARY = 64, 128, 1024, 10_000
else:
    BATCH_SIZE, TOKENS, WIDTH, VOCABULARY = 8, 32, 64, 1_000

TOKENS_PER_SAMPLE = TOKENS


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.2)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.words.weight
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(self, words):
        states, _ = self.lstm(self.dropout(self.words(words)))
        return self.head(self.dropout(states))


class Windows(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.text = torch.randint(VOCABULARY, (2_000_000,), generator=generator)

    def __len__(self):
        return len(self.text) // TOKENS - 1

    def __getitem__(self, index):
        window = self.text[index * TOKENS : (index + 1) * TOKENS + 1]
        return window[:-1], window[1:]


def build_model():
    return LanguageModel()


def build_dataset():
    return Windows()


def build_optimizer(params):
    return torch.optim.Adam(params, lr=1e-3)


def compute_loss(model, batch):
    words, following = batch
    return F.cross_entropy(model(words).flatten(0, 1), following.flatten())
