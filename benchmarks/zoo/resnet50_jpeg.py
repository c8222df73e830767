"""ResNet-50 of torchvision on JPEGs that the loader decodes, with SGD at rate 0.1."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.models import resnet18, resnet50

if torch.cuda.is_available():
    BATCH_SIZE, NUM_FILES, SIDE, NETWORK = 64, 512, 224, resnet50
else:
    BATCH_SIZE, NUM_FILES, SIDE, NETWORK = 8, 64, 64, resnet18

NUM_CLASSES = 1000
EPOCH = 50_000  # photos, of which many share a file
FOLDER = Path(tempfile.gettempdir()) / f"zoo-photos-{NUM_FILES}"


def photos():
    """Return the folder of JPEGs; they are made when it is asked for first."""
    if not FOLDER.exists():
        unfinished = Path(tempfile.mkdtemp(dir=FOLDER.parent))
        rng = np.random.default_rng(0)
        for number in range(NUM_FILES):
            # Smooth areas with some noise, as a photo has: about 100 kB.
            coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=int)
            photo = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255)
            file = unfinished / f"{number:05}.jpg"
            Image.fromarray(photo.astype(np.uint8)).save(file, quality=90)
        try:
            unfinished.rename(FOLDER)
        except OSError:  # another process was faster
            if not FOLDER.exists():
                raise
    return FOLDER


class Photos(Dataset):
    def __init__(self):
        self.files = sorted(os.fspath(path) for path in photos().glob("*.jpg"))
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIDE),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self):
        return EPOCH

    def __getitem__(self, index):
        with Image.open(self.files[index % NUM_FILES]) as photo:
            return self.transform(photo.convert("RGB")), index % NUM_CLASSES


def build_model():
    return NETWORK(num_classes=NUM_CLASSES)


def build_dataset():
    return Photos()


def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4)


def compute_loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)
