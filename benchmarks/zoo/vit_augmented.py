"""A vision transformer of timm; the loader's CPU augments each picture."""

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from torchvision.transforms import v2

if torch.cuda.is_available():
    BATCH_SIZE, SIDE, SIZE = 64, 224, {"model_name": "vit_small_patch16_224"}
else:
    BATCH_SIZE, SIDE = 8, 64
    SIZE = {
        "model_name": "vit_tiny_patch16_224",
        "img_size": SIDE,
        "embed_dim": 96,
        "depth": 4,
    }

NUM_CLASSES, NUM_PICTURES, EPOCH = 100, 256, 50_000


class Pictures(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        shape = (NUM_PICTURES, 3, SIDE + 32, SIDE + 32)
        self.pictures = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        self.augment = v2.Compose(
            [
                v2.RandomResizedCrop(SIDE, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self):
        return EPOCH

    def __getitem__(self, index):
        picture = self.augment(self.pictures[index % NUM_PICTURES])
        return {"image": picture, "label": index % NUM_CLASSES}


def build_model():
    return timm.create_model(**SIZE, pretrained=False, num_classes=NUM_CLASSES)


def build_dataset():
    return Pictures()


def build_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05)


def compute_loss(model, batch):
    return F.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)
