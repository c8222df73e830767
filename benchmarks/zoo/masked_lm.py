"""BERT fills in masked words of texts of uneven length, padded to the longest of a batch."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM

PAD, MASK, WORDS_BEGIN = 0, 1, 2

if torch.cuda.is_available():
    BATCH_SIZE, LONGEST, NUM_TEXTS = 32, 384, 50_000
    SIZE = {}  # BERT-base: 12 layers of 768, a vocabulary of 30522
else:
    BATCH_SIZE, LONGEST, NUM_TEXTS = 8, 64, 2_000
    SIZE = {
        "vocab_size": 2000,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    }

CONFIG = BertConfig(max_position_embeddings=512, **SIZE)


class Texts(Dataset):
    """Most texts are short, a few are as long as is allowed."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        skewed = torch.rand(NUM_TEXTS, generator=generator) ** 2
        self.lengths = (8 + skewed * (LONGEST - 8)).long()

    def __len__(self):
        return NUM_TEXTS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = (int(self.lengths[index]),)
        return torch.randint(WORDS_BEGIN, CONFIG.vocab_size, length, generator=generator)


def collate_fn(texts):
    words = pad_sequence(texts, batch_first=True, padding_value=PAD)
    is_word = words != PAD
    is_masked = is_word & (torch.rand(words.shape) < 0.15)
    return {
        "input_ids": words.masked_fill(is_masked, MASK),
        "attention_mask": is_word.long(),
        "labels": words.masked_fill(~is_masked, -100),
    }


def build_model():
    return BertForMaskedLM(CONFIG)


def build_dataset():
    return Texts()


def compute_loss(model, batch):
    return model(**batch).loss
