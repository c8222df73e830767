"""A language model of 1.1 billion parameters, in the shape of TinyLlama."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

if torch.cuda.is_available():
    BATCH_SIZE, TOKENS = 4, 1024
    CONFIG = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
    )
else:
    BATCH_SIZE, TOKENS = 2, 64
    CONFIG = LlamaConfig(
        vocab_size=8000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
    )

CONFIG.max_position_embeddings = TOKENS
CONFIG.use_cache = False
TOKENS_PER_SAMPLE = TOKENS


class Windows(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(CONFIG.vocab_size, (TOKENS,), generator=generator)}


def build_model():
    return LlamaForCausalLM(CONFIG)


def build_dataset():
    return Windows()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1)


def compute_loss(model, batch):
    return model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
