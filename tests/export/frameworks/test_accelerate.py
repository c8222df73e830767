"""accelerate's own launcher reads what is written for it."""

import os
import subprocess
import sys

import pytest

from tests.export.frameworks.plans import DDP, GPU, left_out, written
from tests.trials.two_ranks import free_port

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


TRAIN = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.backward(model(torch.ones(1, 2)).sum())
optimizer.step()
accelerator.print(accelerator.num_processes, accelerator.mixed_precision, type(model).__name__)
accelerator.wait_for_everyone()
accelerator.end_training()
"""


def test_two_processes_train_on_a_cpu(tmp_path):
    """As the file's comment says: torchrun, with the variables of the same plan."""
    values = {"precision": "bf16", "sharding": "ddp", "threads": 1}
    about = {"ranks": 2, "device_kind": "cpu"}
    comment = written("accelerate", values, **about).text
    assert "torchrun --nproc-per-node 2 train.py" in comment
    (tmp_path / "autotune.env").write_text(written("env", values, **about).text)
    (tmp_path / "train.py").write_text(TRAIN)
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2"
    command = f". ./autotune.env; exec {torchrun} --master-port {free_port()} train.py"
    shell = ["sh", "-c", command]
    done = subprocess.run(
        shell, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "bf16", "DistributedDataParallel"]
