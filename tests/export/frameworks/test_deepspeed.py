"""DeepSpeed's own configuration class takes what is written for it."""

import json

import pytest

from tests.export.frameworks.plans import DDP, GPU, left_out, written

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library's own imports


def config_of(values, ranks=2):
    from deepspeed.runtime.config import DeepSpeedConfig

    keys = json.loads(written("deepspeed", values, ranks=ranks).text)
    return DeepSpeedConfig(keys)


@pytest.mark.parametrize(
    ("sharding", "stage"),
    [("ddp", 0), ("zero1", 1), ("fsdp_zero2", 2), ("fsdp_zero3", 3), ("hsdp", 3)],
)
def test_shardings(sharding, stage):
    """Each has the stage that is it, or the nearest one, and says so."""
    config = config_of({**GPU, "sharding": sharding}, ranks=4)
    assert config.zero_config.stage == stage
    assert config.train_micro_batch_size_per_gpu == 64
    assert config.gradient_accumulation_steps == 2
    assert config.zero_config.zero_hpz_partition_size == (2 if sharding == "hsdp" else 1)
    told = left_out(written("deepspeed", {**GPU, "sharding": sharding}, ranks=4))
    assert ("sharding" in told) == (sharding in {"fsdp_zero2", "hsdp"})


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_is_that_of_autocast(precision):
    """And leaves the model in fp32."""
    import torch

    config = config_of({**GPU, "precision": precision})
    assert config.torch_autocast_enabled
    assert (
        config.torch_autocast_dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    )
    assert not config.bfloat16_config.enabled
    assert not config.float16_config.enabled


def test_buckets_and_what_is_sent():
    """Buckets are counted in elements, of fp32 here."""
    import torch

    config = config_of(GPU | DDP)
    assert config.zero_config.reduce_bucket_size == 25 * 2**20
    assert config.communication_data_type == torch.bfloat16
