"""A language model with mixtures of experts, always trained on 64 sequences at a time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

if torch.cuda.is_available():
    BATCH_SIZE, GLOBAL_BATCH_SIZE, TOKENS, VOCABULARY = 16, 64, 256, 16_000
    LAYERS, WIDTH, EXPERTS = 8, 512, 8  # 159 million parameters
else:
    BATCH_SIZE, GLOBAL_BATCH_SIZE, TOKENS, VOCABULARY = 4, 16, 32, 500
    LAYERS, WIDTH, EXPERTS = 2, 64, 4

TOKENS_PER_SAMPLE = TOKENS
CHOSEN = 2  # experts of each token


class Experts(nn.Module):
    """Each token goes to the experts that a router chooses, and they are mixed by its scores."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).softmax(dim=-1).topk(CHOSEN, dim=-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = torch.nonzero(chosen == number, as_tuple=True)
            weighted = expert(tokens[token]) * scores[token, place, None]
            mixed = mixed.index_add(0, token, weighted.to(mixed.dtype))
        return mixed.view_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts = Experts()

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.experts(self.norm_2(x))

    def attention(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


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
    return torch.optim.AdamW(params, lr=3e-4)


def compute_loss(model, batch):
    words, following = batch
    return F.cross_entropy(model(words).flatten(0, 1), following.flatten())
