"""Lightning's own Trainer takes what is written for it."""

import runpy

import pytest

from tests.export.frameworks.plans import CPU, DDP, GPU, IN_CODE, left_out, written

pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library's own imports


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the functions of the file for a plan, run on this machine's CPU."""
    import torch

    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)

    def load(values, **about):
        path = tmp_path / "lightning_plan.py"
        path.write_text(written("lightning", values, **about).text)
        return runpy.run_path(str(path))

    return load


def trainer(arguments, tmp_path):
    """Return a Trainer with these arguments, for a CPU whatever they say."""
    import lightning

    usual = {"logger": False, "enable_checkpointing": False, "default_root_dir": str(tmp_path)}
    return lightning.Trainer(**{**arguments, **usual, "accelerator": "cpu"})


def test_a_plan_of_one_device(module, tmp_path):
    """Some settings are the Trainer's, the rest the loader's and the model's."""
    import torch

    functions = module(GPU | IN_CODE)
    made = trainer(functions["trainer_arguments"](), tmp_path)
    assert torch._inductor.config.force_shape_pad
    torch._inductor.config.force_shape_pad = False
    assert (made.precision, made.accumulate_grad_batches) == ("bf16-mixed", 2)
    loader = torch.utils.data.DataLoader([0] * 64, **functions["loader_arguments"]())
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (64, 4, 4)
    model = functions["prepare"](torch.nn.Conv2d(2, 2, 2))
    assert isinstance(model, torch._dynamo.OptimizedModule)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)


def test_blocks_are_compiled_by_themselves(module):
    """Those of the run's classes."""
    import torch

    class Block(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Block(2, 2), torch.nn.Linear(2, 2))
    prepare = module({**GPU, "compile_scope": "block"})["prepare"]
    assert prepare(model) is model
    assert [part._compiled_call_impl is not None for part in model] == [True, False]


def test_ddp(module, tmp_path):
    """All of DDP's arguments, the communication hook among them."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    made = trainer(module(GPU | DDP, ranks=2)["trainer_arguments"](), tmp_path)
    strategy = made.strategy
    assert strategy._ddp_kwargs == {
        "bucket_cap_mb": 100,
        "gradient_as_bucket_view": True,
        "static_graph": True,
    }
    assert strategy._ddp_comm_hook is default_hooks.bf16_compress_hook


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("fsdp_zero2", "SHARD_GRAD_OP"),
        ("fsdp_zero3", "FULL_SHARD"),
        ("hsdp", "HYBRID_SHARD"),
    ],
)
def test_fsdp(module, sharding, expected):
    """Blocks are handed over as classes; the strategy needs a GPU only when it runs."""
    import torch

    values = {**GPU, "sharding": sharding, "activation_checkpointing": "full"}
    strategy = module(values, ranks=4)["trainer_arguments"](torch.nn.Linear)["strategy"]
    assert strategy.sharding_strategy.name == expected
    assert "FSDP 1" in left_out(written("lightning", values, ranks=4))["sharding"]
    by_size = module({"sharding": sharding}, ranks=4, block_classes=())["trainer_arguments"]()
    assert by_size["strategy"].kwargs["auto_wrap_policy"].keywords == {
        "min_num_params": 124_000_000 // 24
    }


def test_zero1(module):
    """DeepSpeed's own configuration, with its autocast."""
    pytest.importorskip("deepspeed")
    strategy = module({**GPU, "sharding": "zero1"}, ranks=2)["trainer_arguments"]()["strategy"]
    assert strategy.config["zero_optimization"] == {"stage": 1}
    assert strategy.config["torch_autocast"]["dtype"] == "bfloat16"


def test_the_trainer_trains_with_it(module, tmp_path):
    """A plan of a CPU, from its file through the Trainer's own loop."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def training_step(self, batch):
            return self.linear(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    functions = module(CPU, device_kind="cpu")
    arguments = functions["trainer_arguments"]() | {
        "max_steps": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    made = trainer(arguments, tmp_path)
    rows = [torch.ones(4) for _ in range(16)]
    loader = torch.utils.data.DataLoader(rows, **functions["loader_arguments"]())
    made.fit(functions["prepare"](Model()), loader)
    assert made.global_step == 2
