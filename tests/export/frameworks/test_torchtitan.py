"""torchtitan gets a function for its config, and older versions TOML."""

import tomllib
from types import SimpleNamespace

import pytest

from tests.export.frameworks.plans import GPU, left_out, written

SECTIONS = ("training", "parallelism", "compile", "optimizer", "dataloader")
# The keys of `torchtitan/config/job_config.py`, version 0.2.2.
TOML_KEYS = {
    "training": {"local_batch_size", "global_batch_size", "mixed_precision_param", "dataloader"},
    "parallelism": {
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
    },
    "compile": {"enable"},
    "optimizer": {"implementation"},
    "activation_checkpoint": {"mode", "selective_ac_option"},
}
NO_CHECKPOINTS = {**GPU, "activation_checkpointing": "none"}


def configured(values, config=None, **about):
    """Return a config after the function that is written for a plan."""
    functions: dict = {}
    exec(written("torchtitan", values, **about).text, functions)
    empty = {name: SimpleNamespace() for name in SECTIONS}
    return functions["with_plan"](config or SimpleNamespace(**empty))


def test_a_plan_of_one_device():
    """Batch, precision, compiler, loader and optimizer are the plan's."""
    config = configured({**NO_CHECKPOINTS, "cuda_graph": "off"})
    assert config.training.local_batch_size == 64
    assert config.training.global_batch_size == 128
    assert config.training.mixed_precision_param == "bfloat16"
    assert config.training.disable_cuda_graphs  # which are on by default
    assert config.compile.enable
    assert config.dataloader.num_workers == 4
    assert config.dataloader.persistent_workers
    assert config.optimizer.implementation == "fused"
    assert config.activation_checkpoint is None


@pytest.mark.parametrize(
    ("sharding", "degrees", "reshard"),
    [
        ("ddp", (4, 1), None),
        ("fsdp_zero2", (1, 4), "never"),
        ("fsdp_zero3", (1, 4), "always"),
        ("hsdp", (2, 2), "always"),
    ],
)
def test_shardings(sharding, degrees, reshard):
    """As degrees of its mesh, and when parameters are freed."""
    parallelism = configured({**NO_CHECKPOINTS, "sharding": sharding}, ranks=4).parallelism
    assert degrees == (
        parallelism.data_parallel_replicate_degree,
        parallelism.data_parallel_shard_degree,
    )
    assert getattr(parallelism, "fsdp_reshard_after_forward", None) == reshard


@pytest.mark.parametrize(
    ("sharding", "device_kind", "expected"),
    [("ddp", "cuda", "foreach"), ("fsdp_zero3", "cuda", "for-loop"), ("ddp", "cpu", "for-loop")],
)
def test_the_implementation_that_torch_takes_by_itself_is_named(sharding, device_kind, expected):
    """The tool's own default is another one, the fused."""
    values = {**NO_CHECKPOINTS, "optimizer_impl": "default", "sharding": sharding}
    config = configured(values, ranks=2, device_kind=device_kind)
    assert config.optimizer.implementation == expected


def test_what_it_has_not_is_told():
    """Every second block, other compiler modes, fp16 and ZeRO-1."""
    values = {**GPU, "compile_mode": "max-autotune", "precision": "fp16", "sharding": "zero1"}
    told = left_out(written("torchtitan", values, ranks=2))
    assert {"activation_checkpointing", "compile_mode", "precision", "sharding"} <= told.keys()
    assert configured(GPU).activation_checkpoint is None


@pytest.mark.parametrize("mode", ["none", "full", "selective", "every-2"])
def test_toml_for_older_versions(mode):
    """With keys that version 0.2.2 has, where every second block can be checkpointed."""
    values = {**GPU, "activation_checkpointing": mode, "sharding": "fsdp_zero3"}
    document = tomllib.loads(written("torchtitan", values, ranks=2, dialect="toml").text)
    assert document.keys() <= TOML_KEYS.keys()
    for section, keys in document.items():
        assert keys.keys() <= TOML_KEYS[section], section
    expected = {
        "every-2": {"mode": "selective", "selective_ac_option": "2"},
        "selective": {"mode": "selective", "selective_ac_option": "op"},
    }
    assert document["activation_checkpoint"] == expected.get(mode, {"mode": mode})
    assert document["training"]["dataloader"]["num_workers"] == 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_its_own_config_takes_it(mode):
    """Which has slots, so a name that is not its own raises."""
    pytest.importorskip("torchtitan.trainer")
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
    from torchtitan.trainer import Trainer

    own = Trainer.Config(
        optimizer=default_adamw(lr=1e-3),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test"),
    )
    values = {**GPU, "activation_checkpointing": mode, "sharding": "hsdp", "cuda_graph": "off"}
    config = configured(values, own, ranks=4)
    assert config.parallelism.data_parallel_replicate_degree == 2
    assert (
        type(config.activation_checkpoint).__qualname__
        == {
            "none": "NoneType",
            "full": "FullAC.Config",
            "selective": "SelectiveAC.Config",
        }[mode]
    )
