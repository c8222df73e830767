"""transformers' own `TrainingArguments` takes what is written for it."""

import json

import pytest
import yaml

from autotune.export.frameworks import FRAMEWORKS
from tests.export.frameworks.plans import CPU, DDP, GPU, left_out, written

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library's own imports


@pytest.fixture
def arguments(tmp_path):
    """Return the TrainingArguments of a plan, on this machine's CPU."""

    def load(values, **about):
        keys = yaml.safe_load(written("transformers", values, **about).text)
        return transformers.TrainingArguments(
            output_dir=str(tmp_path), **{"use_cpu": True, **keys}
        )

    return load


def test_a_plan_of_one_gpu(arguments):
    """Batch, precision, compiler, loader, checkpointing and optimizer are the plan's."""
    args = arguments(GPU)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (64, 2)
    assert args.bf16
    assert not args.fp16
    assert (args.torch_compile, args.torch_compile_mode) == (True, "default")
    assert (args.dataloader_num_workers, args.dataloader_prefetch_factor) == (4, 4)
    assert args.dataloader_persistent_workers
    assert args.accelerator_config.non_blocking
    assert args.activation_checkpointing
    assert args.activation_checkpointing_kwargs == {"every_n_layers": 2}
    assert args.optim == "adamw_torch_fused"


def test_the_trainers_own_defaults_are_set_back(arguments):
    """It would take the fused AdamW, page-locked batches and, compiling, tf32."""
    plain = {**GPU, "optimizer_impl": "default", "pin_memory": False, "precision": "fp32"}
    args = arguments(plain)
    assert args.optim == "adamw_torch"
    assert not args.dataloader_pin_memory
    assert args.tf32 is False
    assert arguments(plain, own_impl="fused").optim == "adamw_torch_fused"


def test_tf32_is_a_key_of_its_own():
    """The library refuses it on a CPU, so it is only compared with the names of its fields."""
    keys = yaml.safe_load(written("transformers", {"precision": "tf32"}).text)
    assert keys == {"tf32": True}
    assert "tf32" in transformers.TrainingArguments.__dataclass_fields__


def test_ddp(arguments):
    """Buckets and the static graph are keys; what it has no keys for is told."""
    args = arguments(GPU | DDP, ranks=2)
    assert (args.ddp_bucket_cap_mb, args.ddp_static_graph) == (100, True)
    told = left_out(written("transformers", GPU | DDP, ranks=2))
    assert "DDPCommunicationHookType.BF16" in told["comm_hook"]
    assert "gradient_as_bucket_view=True" in told["gradient_as_bucket_view"]


@pytest.mark.parametrize(
    ("sharding", "reshard"), [("fsdp_zero2", False), ("fsdp_zero3", True), ("hsdp", True)]
)
def test_fsdp_cuts_the_blocks_of_the_run(arguments, sharding, reshard):
    """By their class, as FSDP 2; accelerate's plugin takes what the Trainer makes of it."""
    from accelerate import FullyShardedDataParallelPlugin

    values = {**GPU, "sharding": sharding, "activation_checkpointing": "full"}
    args = arguments(values, ranks=4)
    plugin = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, reshard)
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert plugin.activation_checkpointing
    assert not args.activation_checkpointing


def test_fsdp_goes_by_size_where_blocks_have_no_name(arguments):
    """Half of a block's size where their number is known, else torch's own least size."""
    args = arguments({"sharding": "fsdp_zero3"}, ranks=2, block_classes=())
    assert args.fsdp_plugin_args["auto_wrap_policy"] == "SIZE_BASED_WRAP"
    assert args.fsdp_plugin_args["min_num_params"] == 124_000_000 // 24
    about = {"ranks": 2, "block_classes": (), "num_blocks": 0}
    assert arguments({"sharding": "fsdp_zero3"}, **about).fsdp_config["min_num_params"] == 10**8


def test_zero1_is_deepspeeds(arguments):
    """With autocast of DeepSpeed's own, as its bf16 would put the model itself into 16 bits."""
    pytest.importorskip("deepspeed")
    args = arguments({**GPU, "sharding": "zero1", "bucket_mb": 50}, ranks=2)
    config = args.deepspeed_plugin.deepspeed_config
    assert config["zero_optimization"] == {"stage": 1, "reduce_bucket_size": 50 * 2**20 // 4}
    assert config["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert config["train_micro_batch_size_per_gpu"] == 64
    assert not args.bf16


def test_the_trainer_trains_with_it(tmp_path):
    """A plan of a CPU, from its file through the Trainer's own loop."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x):
            return {"loss": self.linear(x).square().mean()}

    keys = yaml.safe_load(written("transformers", CPU, device_kind="cpu").text)
    assert keys["use_cpu"]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to="none", save_strategy="no", **keys
    )
    rows = [{"x": torch.ones(4)} for _ in range(16)]
    trainer = transformers.Trainer(model=Model(), args=args, train_dataset=rows)
    assert trainer.train().global_step == 2
    assert trainer.optimizer.optimizer.param_groups[0]["fused"]
    assert trainer.get_train_dataloader().num_workers == 1


def test_json_says_the_same():
    """For scripts that read it with HfArgumentParser; it has no comments."""
    as_json = json.loads(written("transformers", GPU, dialect="json").text)
    assert as_json == yaml.safe_load(written("transformers", GPU, dialect="yaml").text)
    assert set(FRAMEWORKS["transformers"].dialects) == {"yaml", "json"}
