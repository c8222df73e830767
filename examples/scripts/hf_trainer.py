"""Trains a small causal language model with the Trainer of transformers.

python examples/scripts/hf_trainer.py --max_steps 100
autotune run --budget 2m -- python examples/scripts/hf_trainer.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class ModelArguments:
    n_embd: int = 128
    n_layer: int = 4
    n_positions: int = 128
    vocab_size: int = 2048


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences in which each token follows from the one before, most of the time."""

    def __init__(self, size: int, length: int, vocabulary: int) -> None:
        self.size, self.length, self.vocabulary = size, length, vocabulary

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        start = int(torch.randint(self.vocabulary, (1,), generator=generator))
        tokens = (start + 7 * torch.arange(self.length)) % self.vocabulary
        return {"input_ids": tokens, "labels": tokens.clone()}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    parser.set_defaults(
        output_dir="runs/hf_trainer",
        per_device_train_batch_size=8,
        max_steps=5000,
        learning_rate=5e-4,
        logging_steps=50,
        save_steps=1000,
        report_to="none",
        disable_tqdm=True,
    )
    model_args, args = parser.parse_args_into_dataclasses()
    config = GPT2Config(
        n_embd=model_args.n_embd,
        n_layer=model_args.n_layer,
        n_head=4,
        n_positions=model_args.n_positions,
        vocab_size=model_args.vocab_size,
        use_cache=False,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Tokens(100_000, model_args.n_positions, model_args.vocab_size),
        data_collator=default_data_collator,
    )
    trainer.train()


if __name__ == "__main__":
    main()
