"""A shell reads the variables, and what they are for finds them."""

import os
import subprocess

import pytest

from tests.export.frameworks.plans import GPU, left_out, written


@pytest.fixture
def sourced(tmp_path):
    """Return the variables that a shell has after reading the file for a plan."""

    def read(values, **about):
        path = tmp_path / "autotune.env"
        path.write_text(written("env", values, **about).text)
        command = ["sh", "-c", f". {path}; env -0"]
        shown = subprocess.run(command, capture_output=True, check=True, env={}).stdout.decode()
        pairs = (line.partition("=") for line in shown.split("\0") if line)
        return {name: value for name, _, value in pairs if name not in {"PWD", "_", "SHLVL"}}

    return read


def test_what_torch_and_the_c_library_read(sourced):
    """Threads, tf32 and freed memory."""
    values = {"threads": 2, "malloc": "keep", "precision": "tf32"}
    assert sourced(values) == {
        "OMP_NUM_THREADS": "2",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**62),
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    }


@pytest.mark.filterwarnings("ignore")
def test_what_accelerate_reads(sourced):
    """Its plugins, made without arguments, are the plan's."""
    pytest.importorskip("accelerate")
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import TorchDynamoPlugin

    values = {**GPU, "compile_scope": "block", "sharding": "hsdp"}
    os.environ.update(sourced({**values, "activation_checkpointing": "full"}, ranks=4))
    plugin, compiling = FullyShardedDataParallelPlugin(), TorchDynamoPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert plugin.activation_checkpointing
    mesh = ParallelismConfig()
    assert (mesh.dp_replicate_size, mesh.dp_shard_size) == (2, 2)
    assert (compiling.mode, compiling.use_regional_compilation) == ("default", True)
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_accelerate_shards_on_gpus_only(sourced):
    """On CPUs it would train without a word, so the plan's sharding is told instead."""
    for tool in ("env", "accelerate", "transformers"):
        configured = written(tool, {"sharding": "fsdp_zero3"}, ranks=2, device_kind="cpu")
        assert "fully_shard" in left_out(configured)["sharding"]
        assert "TRANSFORMER_BASED_WRAP" not in configured.text
    assert sourced({"precision": "bf16"}, device_kind="cpu")["ACCELERATE_USE_CPU"] == "true"


def test_most_settings_have_no_variable():
    """They are told, as for any tool."""
    told = left_out(written("env", {**GPU, "cudnn_benchmark": True}))
    assert {"batch_size", "workers", "cudnn_benchmark", "optimizer_impl"} <= told.keys()
