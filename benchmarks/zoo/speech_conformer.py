"""Speech recognition: a Conformer of torchaudio on utterances of uneven length, with CTC."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchaudio.models import Conformer

if torch.cuda.is_available():
    BATCH_SIZE, LONGEST, WIDTH, LAYERS = 16, 800, 256, 12
else:
    BATCH_SIZE, LONGEST, WIDTH, LAYERS = 4, 80, 64, 2

MELS, LETTERS, NUM_UTTERANCES = 80, 32, 10_000


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.shrink = nn.Conv1d(MELS, WIDTH, kernel_size=4, stride=4)
        self.conformer = Conformer(
            input_dim=WIDTH,
            num_heads=4,
            ffn_dim=4 * WIDTH,
            num_layers=LAYERS,
            depthwise_conv_kernel_size=31,
            dropout=0.1,
        )
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, frames, lengths):
        x = self.shrink(frames.transpose(1, 2)).transpose(1, 2)
        states, lengths = self.conformer(x, lengths // 4)
        return self.head(states), lengths


class Utterances(Dataset):
    """Frames of a spectrogram, and a letter for every sixteen of them."""

    def __len__(self):
        return NUM_UTTERANCES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(LONGEST // 4, LONGEST + 1, (), generator=generator))
        frames = torch.randn(length, MELS, generator=generator)
        return frames, torch.randint(1, LETTERS, (length // 16,), generator=generator)


def collate_fn(utterances):
    frames, letters = zip(*utterances, strict=True)
    return {
        "frames": pad_sequence(frames, batch_first=True),
        "lengths": torch.tensor([len(f) for f in frames]),
        "letters": pad_sequence(letters, batch_first=True),
        "num_letters": torch.tensor([len(text) for text in letters]),
    }


def build_model():
    return Recogniser()


def build_dataset():
    return Utterances()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=5e-4, weight_decay=1e-2)


def compute_loss(model, batch):
    scores, lengths = model(batch["frames"], batch["lengths"])
    log_probabilities = F.log_softmax(scores.float(), dim=-1).transpose(0, 1)
    return F.ctc_loss(log_probabilities, batch["letters"], lengths, batch["num_letters"])
