"""accelerate's own launcher reads what is written for it."""

import os

import pytest

from tests.export.frameworks.plans import DDP, GPU, left_out, written

pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library's own imports


@pytest.fixture
def launched(tmp_path):
    """Return the environment that `accelerate launch` gives a script under a plan's file."""

    def launch(values, **about):
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils.launch import prepare_multi_gpu_env

        path = tmp_path / "accelerate.yaml"
        path.write_text(written("accelerate", values, **about).text)
        typed = ["--config_file", str(path), "train.py"]
        args, _, _ = _validate_launch_command(launch_command_parser().parse_args(typed))
        return prepare_multi_gpu_env(args)

    return launch


@pytest.mark.parametrize("scope", ["model", "block"])
def test_compiler_and_precision(launched, scope):
    """The script finds the plan's mode, scope and precision, also a mode the CLI does not list."""
    mode = "max-autotune-no-cudagraphs"
    environment = launched({**GPU, "compile_mode": mode, "compile_scope": scope})
    os.environ.update(environment)
    from accelerate.utils import TorchDynamoPlugin

    plugin = TorchDynamoPlugin()
    assert (plugin.backend.value, plugin.mode) == ("INDUCTOR", mode)
    assert plugin.use_regional_compilation == (scope == "block")
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize(
    ("values", "ranks", "device_kind", "expected"),
    [
        (GPU, 1, "cuda", "NO"),
        (GPU | DDP, 2, "cuda", "MULTI_GPU"),
        (GPU | DDP, 2, "cpu", "MULTI_CPU"),
        ({**GPU, "sharding": "fsdp_zero3"}, 2, "cuda", "FSDP"),
        ({**GPU, "sharding": "zero1"}, 2, "cuda", "DEEPSPEED"),
    ],
)
def test_its_config_class_takes_the_file(tmp_path, values, ranks, device_kind, expected):
    """Which refuses unknown keys."""
    from accelerate.commands.config.config_args import load_config_from_file

    for name in ("yaml", "json"):
        path = tmp_path / f"config.{name}"
        about = {"ranks": ranks, "device_kind": device_kind, "dialect": name}
        path.write_text(written("accelerate", values, **about).text)
        config = load_config_from_file(str(path))
        assert config.distributed_type.value == expected
        assert config.num_processes == ranks
        assert config.use_cpu == (device_kind == "cpu")


@pytest.mark.parametrize("sharding", ["fsdp_zero2", "fsdp_zero3", "hsdp"])
def test_fsdp(launched, sharding):
    """Two parts and two copies under hsdp; blocks by their class."""
    values = {**GPU, "sharding": sharding, "activation_checkpointing": "full"}
    os.environ.update(launched(values, ranks=4))
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig

    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward == (sharding != "fsdp_zero2")
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert plugin.activation_checkpointing
    if sharding == "hsdp":
        mesh = ParallelismConfig()
        assert (mesh.dp_replicate_size, mesh.dp_shard_size) == (2, 2)


def test_fsdp_by_size(launched):
    """Where blocks have no name."""
    os.environ.update(launched({"sharding": "fsdp_zero3"}, ranks=2, block_classes=()))
    from accelerate import FullyShardedDataParallelPlugin

    assert FullyShardedDataParallelPlugin().min_num_params == 124_000_000 // 24


def test_what_it_takes_in_code_is_told():
    """It has no keys for the loader, DDP's arguments and the optimizer."""
    told = left_out(written("accelerate", GPU | DDP, ranks=2))
    assert told["bucket_mb"] == (
        "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=100)])"
    )
    assert told["accumulation"] == "Accelerator(gradient_accumulation_steps=2)"
    assert told["threads"] == "accelerate launch --num_cpu_threads_per_process 1"
    assert "DataLoader(batch_size=64)" in told["batch_size"]


def test_half_precision_under_deepspeed_is_not_taken_for_autocast():
    """Its mixed_precision is another thing there."""
    configured = written("accelerate", {**GPU, "sharding": "zero1"}, ranks=2)
    assert "mixed_precision: 'no'" in configured.text
    assert "--for deepspeed" in left_out(configured)["precision"]
