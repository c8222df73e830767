"""A causal language model of transformers, trained from its own loss: 271 million parameters."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

if torch.cuda.is_available():
    BATCH_SIZE, TOKENS, VOCABULARY = 16, 512, 32000
    SIZE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16}
else:
    BATCH_SIZE, TOKENS, VOCABULARY = 4, 64, 2000
    SIZE = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4}

TOKENS_PER_SAMPLE = TOKENS


class Windows(Dataset):
    """Windows of one long text."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.text = torch.randint(VOCABULARY, (4_000_000,), generator=generator)

    def __len__(self):
        return len(self.text) // TOKENS

    def __getitem__(self, index):
        return {"input_ids": self.text[index * TOKENS : (index + 1) * TOKENS]}


def build_model():
    heads = SIZE["hidden_size"] // 64
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=heads,
        max_position_embeddings=TOKENS,
        use_cache=False,
        **SIZE,
    )
    return LlamaForCausalLM(config)


def build_dataset():
    return Windows()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def compute_loss(model, batch):
    return model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
