"""T5 learns to translate: pairs of texts, the loss of transformers' own model."""

import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration

if torch.cuda.is_available():
    # T5-base: 223 million parameters.
    BATCH_SIZE, SOURCE, TARGET = 16, 256, 128
    CONFIG = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)
else:
    BATCH_SIZE, SOURCE, TARGET = 4, 48, 24
    CONFIG = T5Config(vocab_size=2000, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4)

CONFIG.decoder_start_token_id = 0
CONFIG.use_cache = False


class Pairs(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        text = torch.randint(2, CONFIG.vocab_size, (SOURCE + TARGET,), generator=generator)
        return {"input_ids": text[:SOURCE], "labels": text[SOURCE:]}


def build_model():
    return T5ForConditionalGeneration(CONFIG)


def build_dataset():
    return Pairs()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-4, weight_decay=0.01)


def compute_loss(model, batch):
    return model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
